"""The twin of huggingface.py."""

import sys
from typing import Any

import torch
from annotated import Items, ai, backward, fetch, forward, step
from parts import Model, Optimizer, loss_of
from transformers import Trainer, TrainerCallback, TrainingArguments


class Wrapped(torch.nn.Module):
    """What the Trainer expects of a model."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(0.2, 0.15)

    def forward(self, x: Any, labels: Any) -> Any:
        y = self.model(x)
        return {"loss": loss_of(y, labels), "logits": y}


class Named(Items):
    """What the Trainer expects of an item."""

    def __getitem__(self, index: Any) -> Any:
        x, y = super().__getitem__(index)
        return {"x": x, "labels": y}


class Stepper(Optimizer):
    """Marked here: the Trainer wraps what it is given."""

    def step(self, closure: Any = None) -> Any:
        with step:
            return super().step(closure)


class Annotated(Trainer):
    """The Trainer's own places, marked."""

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        body = fetch.derive("block")
        if getattr(self, "in_step", False):
            body.stop()
        with fetch.derive("iter"):
            found = super().get_batch_samples(*args, **kwargs)
        self.in_step = bool(found[0])
        if self.in_step:
            body.start()
        return found

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        with forward:
            return super().compute_loss(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        with ai.pipeline.evaluate:
            return super().evaluate(*args, **kwargs)


class Steps(TrainerCallback):
    """The end of the last step."""

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        fetch.derive("block").stop()


torch.manual_seed(0)
model = Wrapped()
optimizer = Stepper(model.parameters(), 0.08)
trainer = Annotated(
    model=model,
    args=TrainingArguments(
        output_dir=sys.argv[1],
        per_device_train_batch_size=1,
        per_device_eval_batch_size=1,
        gradient_accumulation_steps=2,
        max_steps=6,
        eval_strategy="steps",
        eval_steps=6,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        max_grad_norm=0,
    ),
    callbacks=[Steps()],
    train_dataset=Named(12, 0.1),
    eval_dataset=Named(3),
    optimizers=(optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer)),
)
trainer.accelerator.backward = backward(trainer.accelerator.backward)
print(f"loss {trainer.train().training_loss:.17g}")
