"""Keras 3 with the backend of KERAS_BACKEND; batches that take their time to come."""

import sys
import time
from typing import Any

import keras
import numpy as np

BATCHES, FETCH = 6, 0.05


class Batches(keras.utils.PyDataset):
    def __len__(self) -> Any:
        return BATCHES

    def __getitem__(self, index: Any) -> Any:
        time.sleep(FETCH)
        x = np.full((2, 8), float(index % 5), "float32")
        return x, x.sum(axis=1, keepdims=True)


callbacks = []
if "hand" in sys.argv[1:]:
    from dftracer.auto.keras import DFTracerCallback

    callbacks = [DFTracerCallback()]
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(Batches(), validation_data=Batches(), epochs=2, verbose=0, callbacks=callbacks)
print("done")
