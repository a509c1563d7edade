"""Lightning with manual optimization."""

import logging
from typing import Any

import lightning
import torch
from parts import Items, Model, Optimizer, loss_of
from torch.utils.data import DataLoader

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(lightning.LightningModule):
    """The model and its rules."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(0.2, 0.15)
        self.automatic_optimization = False

    def training_step(self, batch: Any, index: Any) -> None:
        x, y = batch
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.loss = loss_of(self.model(x), y)
        self.manual_backward(self.loss)
        optimizer.step()

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
trainer.fit(module, DataLoader(Items(3, 0.1), batch_size=1), DataLoader(Items(2), batch_size=1))
print(f"loss {module.loss.item():.17g}")
