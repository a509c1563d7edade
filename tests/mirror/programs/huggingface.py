"""A tiny model in the Trainer of transformers."""

import torch
from looking import exact, look_at
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.utils import logging

logging.set_verbosity_error()
torch.manual_seed(13)


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, i):
        return {"x": torch.full((4,), i / 16), "labels": torch.tensor([float(i % 2)])}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 1)

    def forward(self, x, labels):
        out = self.inner(x)
        return {"loss": (out - labels).square().mean(), "logits": out}


class Look(TrainerCallback):
    def on_log(self, args, state, control, logs, **kwargs):
        print(state.global_step, sorted(logs))
        if "loss" in logs:
            exact("loss", logs["loss"])


arguments = TrainingArguments(
    "out",
    max_steps=6,
    per_device_train_batch_size=4,
    logging_steps=1,
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
    save_strategy="no",
    eval_strategy="steps",
    eval_steps=3,
    seed=1,
)
trainer = Trainer(Model(), arguments, train_dataset=Data(), eval_dataset=Data(), callbacks=[Look()])
trainer.remove_callback(PrinterCallback)  # it prints how long things took
trainer.train()
exact("weights", *trainer.model.inner.weight.flatten())
look_at("model", trainer.model)
look_at("trainer", trainer)
# A callback of the tracer is how this library lets itself be observed.
print([n for c in trainer.callback_handler.callbacks if not (n := type(c).__name__).startswith("DFTracer")])
