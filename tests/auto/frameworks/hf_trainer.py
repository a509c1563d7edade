"""Hugging Face Trainer, a tiny random model, evaluation after each epoch."""

import sys
from typing import Any

import torch
import transformers
from parts import STEPS, Items, Model, Optimizer

EVALUATED = 3


class Config(transformers.PretrainedConfig):
    model_type = "tiny"


class Tiny(transformers.PreTrainedModel):
    config_class = Config

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = Model()
        self.post_init()

    def _init_weights(self, module: Any) -> None:
        pass

    def forward(self, x: Any = None, labels: Any = None) -> Any:
        y = self.model(x)
        return {"loss": torch.nn.functional.mse_loss(y, labels), "logits": y}


class Named(Items):
    def __getitem__(self, index: Any) -> Any:
        x, y = super().__getitem__(index)
        return {"x": x, "labels": y}


def main(folder: str, by_hand: bool) -> None:
    torch.manual_seed(0)
    model = Tiny(Config())
    arguments = transformers.TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=1,
        per_device_eval_batch_size=1,
        gradient_accumulation_steps=2,
        num_train_epochs=2,
        eval_strategy="epoch",
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=0,
    )
    optimizer = Optimizer(model.parameters())
    trainer = transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=Named(STEPS),
        eval_dataset=Named(EVALUATED),
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)),
    )
    if by_hand:
        from dftracer.auto.huggingface import DFTracerCallback

        trainer.add_callback(DFTracerCallback())
    done = trainer.train()
    print(f"steps {done.global_step} loss {done.training_loss:.17g}")


if __name__ == "__main__":
    main(sys.argv[1], "hand" in sys.argv[2:])
