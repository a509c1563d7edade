"""Operators of other processes stay out, those of other threads are in."""

from __future__ import annotations

from .conftest import Runner


def test_workers_forked_inside_the_window(run: Runner) -> None:
    """Neither a loader's workers nor a plain child write into the trace; their own work goes on."""
    done = run(
        """
        import os
        from torch.utils.data import DataLoader, Dataset

        class Items(Dataset):
            def __len__(self):
                return 12
            def __getitem__(self, index):
                x = torch.randn(16)
                for _ in range(20):
                    x = x * 1.01 + 1
                return x

        with collect("out", wait=0, warmup=1, active=2) as c:
            for epoch in range(3):
                for batch in DataLoader(Items(), batch_size=4, num_workers=2):
                    assert batch.shape == (4, 16)
                    optimizer.zero_grad()
                    model(batch).sum().backward()
                    optimizer.step()
                if not (child := os.fork()):
                    torch.ones(3) + 1
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
                c.step()
        """
    )
    done.assert_whole()
    assert done.manifest()["windows"][0]["coverage"] == 1.0


def test_operators_of_other_threads(run: Runner) -> None:
    """Threads that never pause are recorded, and the profiler is not pulled away under them."""
    done = run(
        """
        import threading, time
        stop = threading.Event()

        def many():
            while not stop.is_set():
                torch.ones(3) + 1

        def one():
            x = torch.randn(64, 64)
            while not stop.is_set():
                torch.mm(x, x)

        threads = [threading.Thread(target=work) for work in (many, one)]
        for thread in threads:
            thread.start()
        with collect("out", wait=0, warmup=1, active=1, repeat=5) as c:
            for _ in range(11):
                for _ in range(5):
                    train_step()
                    time.sleep(0.002)  # the others' turn
                c.step()
        stop.set()
        for thread in threads:
            thread.join()
        """
    )
    for window in range(5):
        done.assert_whole(f"0_w{window}" if window else "0")
    found = [event for name in done.names if "kineto" in name for event in done[name]["traceEvents"]]
    assert {"aten::ones", "aten::mm"} <= {event["name"] for event in found}
    assert len({event["tid"] for event in found if event["ph"] == "X"}) >= 3
