"""Hugging Face's Trainer: two batches to a step, one evaluation."""

import sys
from typing import Any

import torch
from parts import Items, Model, Optimizer, loss_of
from transformers import Trainer, TrainingArguments


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


torch.manual_seed(0)
model = Wrapped()
optimizer = Optimizer(model.parameters(), 0.08)
trainer = Trainer(
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
    train_dataset=Named(12, 0.1),
    eval_dataset=Named(3),
    optimizers=(optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer)),
)
print(f"loss {trainer.train().training_loss:.17g}")
