"""The twin of lightning_manual.py."""

import logging
from typing import Any

import lightning
import torch
from annotated import DataLoader, Items, ai, backward, fetch, forward, step
from parts import Model, Optimizer, loss_of

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Waited(DataLoader):
    """A loader whose batches are awaited by hand."""

    def __iter__(self) -> Any:
        batches = super().__iter__()
        while True:
            with fetch.derive("iter"):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch


class Module(lightning.LightningModule):
    """The model and its rules."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(0.2, 0.15)
        self.automatic_optimization = False

    def training_step(self, batch: Any, index: Any) -> None:
        x, y = batch
        optimizer = self.optimizers()
        with forward:
            optimizer.zero_grad()
            self.loss = loss_of(self.model(x), y)
        self.manual_backward(self.loss)
        with step:
            optimizer.step()

    def backward(self, loss: Any) -> None:
        with backward:
            super().backward(loss)

    def on_train_batch_start(self, *args: Any) -> None:
        fetch.derive("block").start()

    def on_train_batch_end(self, *args: Any) -> None:
        fetch.derive("block").stop()

    def on_validation_start(self) -> None:
        ai.pipeline.evaluate.start()

    def on_validation_end(self) -> None:
        ai.pipeline.evaluate.stop()

    def validation_step(self, batch: Any, index: Any) -> None:
        x, y = batch
        loss_of(self.model(x), y)

    def configure_optimizers(self) -> Any:
        return Optimizer(self.parameters(), 0.1)


torch.manual_seed(0)
module = Module()
trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    num_sanity_val_steps=1,
)
trainer.fit(module, Waited(Items(3, 0.1), batch_size=1), DataLoader(Items(2), batch_size=1))
print(f"loss {module.loss.item():.17g}")
