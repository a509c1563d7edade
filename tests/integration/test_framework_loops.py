"""Frameworks that are handed a traced loader train as many steps as without the tracer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.process import Run

LIGHTNING = """
import sys, warnings, logging
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
import torch, lightning
from torch.utils.data import DataLoader, TensorDataset
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.steps, self.checks = torch.nn.Linear(4, 1), 0, 0
    def training_step(self, batch, _):
        self.steps += 1
        return self.layer(batch[0]).mean()
    def validation_step(self, batch, _): self.checks += 1
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), 0.1)
def loader(): return DataLoader(TensorDataset(torch.ones(32, 4)), batch_size=4)
train, validate = ai.dataloader.fetch.iter(loader()), ai.data.item.iter(loader())
model = Model()
options = dict(max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False,
               enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0)
trainer = lightning.Trainer(**options)
trainer.fit(model, train, validate)
first = model.steps
# Here it makes a new loader with another sampler, from what it finds in the old one.
model = Model()
lightning.Trainer(overfit_batches=2, **options).fit(model, train)
print(first, model.checks, trainer.global_step, trainer.num_training_batches, model.steps)
"""


def test_lightning(traced: Callable[..., Run]) -> None:
    """8 batches an epoch, 4 epochs, training and validation; and again with 2 batches an epoch."""
    pytest.importorskip("lightning")
    on, off = traced(LIGHTNING), traced(LIGHTNING, enable=False)
    assert on.stdout == off.stdout == "32 0 32 8 8\n"
    assert len(on.trace.named("fetch.iter")) >= 28


HUGGING_FACE = """
import logging, os, warnings
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
os.environ["HF_HUB_OFFLINE"] = "1"
import torch, transformers
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.steps = torch.nn.Linear(4, 1), 0
    def forward(self, x, labels=None):
        self.steps += self.training
        return {"loss": self.layer(x).mean(), "logits": self.layer(x)}
class Trainer(transformers.Trainer):
    def get_train_dataloader(self): return ai.dataloader.fetch.iter(super().get_train_dataloader())
    def get_eval_dataloader(self, *args): return ai.data.item.iter(super().get_eval_dataloader(*args))
data = [{"x": torch.ones(4), "labels": torch.zeros(1)} for _ in range(32)]
model = Model()
options = transformers.TrainingArguments("out", num_train_epochs=4, per_device_train_batch_size=4,
                                         report_to=[], save_strategy="no", logging_strategy="no",
                                         disable_tqdm=True, use_cpu=True,
                                         eval_strategy="epoch", per_device_eval_batch_size=4)
trainer = Trainer(model, options, train_dataset=data, eval_dataset=data)
result = trainer.train()
print("steps", model.steps, result.global_step, trainer.state.epoch, trainer.state.max_steps)
"""


def test_hugging_face_trainer(traced: Callable[..., Run]) -> None:
    """8 batches an epoch, 4 epochs."""
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    on, off = (traced(HUGGING_FACE, enable=enable) for enable in (True, False))
    lines = [[line for line in run.stdout.splitlines() if line.startswith("steps")] for run in (on, off)]
    assert lines[0] == lines[1] == ["steps 32 32 4.0 32"]
    assert len(on.trace.named("fetch.iter")) >= 28
    assert len(on.trace.named("item.iter")) >= 28
