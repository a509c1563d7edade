"""The twin of lightning_manual.py."""

import logging

import lightning
import torch
from annotated import DataLoader, Items, ai, backward, fetch, forward, step
from parts import Model, Optimizer, loss_of

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Waited(DataLoader):
    """A loader whose batches are awaited by hand."""

    def __iter__(self):
        batches = super().__iter__()
        while True:
            with fetch.derive("iter"):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch


class Module(lightning.LightningModule):
    """The model and its rules."""

    def __init__(self):
        super().__init__()
        self.model = Model(0.2, 0.15)
        self.automatic_optimization = False

    def training_step(self, batch, index):
        x, y = batch
        optimizer = self.optimizers()
        with forward:
            optimizer.zero_grad()
            self.loss = loss_of(self.model(x), y)
        self.manual_backward(self.loss)
        with step:
            optimizer.step()

    def backward(self, loss):
        with backward:
            super().backward(loss)

    def on_train_batch_start(self, *args):
        fetch.derive("block").start()

    def on_train_batch_end(self, *args):
        fetch.derive("block").stop()

    def on_validation_start(self):
        ai.pipeline.evaluate.start()

    def on_validation_end(self):
        ai.pipeline.evaluate.stop()

    def validation_step(self, batch, index):
        x, y = batch
        loss_of(self.model(x), y)

    def configure_optimizers(self):
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
