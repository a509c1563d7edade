"""A tiny model in the Trainer of Lightning."""

import logging
import warnings

import lightning
import torch
from looking import exact, look_at

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
lightning.seed_everything(14, verbose=False)


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        loss = self.inner(batch).square().mean()
        exact("loss", loss)
        return loss

    def validation_step(self, batch, index):
        exact("validation", self.inner(batch).mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


data = torch.utils.data.DataLoader([torch.full((4,), i / 8) for i in range(8)], batch_size=2)
trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    num_sanity_val_steps=1,
)
model = Model()
trainer.fit(model, data, data)
# A callback of the tracer is how this library lets itself be observed.
print([n for c in trainer.callbacks if not (n := type(c).__name__).startswith("DFTracer")])
look_at("trainer", trainer)
look_at("model", model)
