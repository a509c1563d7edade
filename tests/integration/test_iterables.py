"""`iter()` of a node: what it returns is used as what it was given, with tracing on and off."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.process import Run
from support.trace import Trace

BOTH = pytest.mark.parametrize("enable", [True, False], ids=["on", "off"])

LOADER = """
class Loader:
    '''A loader as frameworks know them: iterated once an epoch, sized, with attributes.'''
    made = 0
    def __init__(self, n, batch_size=4):
        self.n, self.batch_size, self.epoch = n, batch_size, 0
        type(self).made += 1
    def __iter__(self): return iter(range(self.n))
    def __len__(self): return self.n
    def __getitem__(self, i): return i * 10
    def __contains__(self, i): return i == "yes"
    def set_epoch(self, epoch): self.epoch = epoch
    @property
    def twice(self): return 2 * self.n
"""


def counts(trace: Trace, name: str) -> list[str]:
    return [str(e.args["count"]) for e in trace.named(name)]


@BOTH
def test_an_iterable_stays_one(enable: bool, traced: Callable[..., Run]) -> None:
    """Iterated again and again, with its length, its items and its attributes."""
    run = traced(
        LOADER
        + """
from collections.abc import Sized
loader = Loader(3)
wrapped = ai.dataloader.fetch.iter(loader)
for epoch in range(3):
    assert list(wrapped) == [0, 1, 2]
assert len(wrapped) == 3 and bool(wrapped) and isinstance(wrapped, Sized)
assert wrapped[2] == 20 and "yes" in wrapped and "no" not in wrapped
assert wrapped.batch_size == 4 and wrapped.twice == 6
wrapped.set_epoch(7)
assert loader.epoch == 7
wrapped.batch_size = 9
assert loader.batch_size == 9 and vars(wrapped) is vars(loader)
assert isinstance(wrapped, Loader) and wrapped.__class__ is Loader
assert not hasattr(wrapped, "nothing")
del wrapped.batch_size
assert not hasattr(loader, "batch_size")
assert [list(zip(wrapped, wrapped))] == [[(0, 0), (1, 1), (2, 2)]]
""",
        enable=enable,
    )
    if enable:
        assert counts(run.trace, "fetch.iter")[:9] == ["1", "2", "3"] * 3
        assert counts(run.trace, "fetch.block")[:9] == ["1", "2", "3"] * 3


@BOTH
def test_a_thing_without_length_has_none(enable: bool, traced: Callable[..., Run]) -> None:
    """What the class does not offer, the stand-in does not either; what fails, fails the same."""
    traced(
        """
        from collections.abc import Sized
        class Stream:
            def __iter__(self): return iter("ab")
        class Unsized(Stream):
            def __len__(self): raise TypeError("no length yet")
        wrapped = ai.dataloader.fetch.iter(Stream())
        assert not hasattr(wrapped, "__len__") and not isinstance(wrapped, Sized)
        assert list(wrapped) == list(wrapped) == ["a", "b"]
        for bad in (wrapped, ai.dataloader.fetch.iter(Unsized())):
            try: len(bad)
            except TypeError: pass
            else: raise SystemExit("a length out of nothing")
        number = ai.dataloader.fetch.iter(5)
        try: iter(number)
        except TypeError as e: assert "not iterable" in str(e), e
        else: raise SystemExit("iterated a number")
        """,
        enable=enable,
    )


@BOTH
def test_an_iterator_stays_one(enable: bool, traced: Callable[..., Run]) -> None:
    """`iter()` of it is itself, it goes on where it was left, and its own methods are there."""
    run = traced(
        """
        def source():
            got = yield 1
            yield got
            yield 3
        it = ai.dataloader.fetch.iter(source())
        assert iter(it) is it
        assert next(it) == 1 and it.send("sent") == "sent"
        assert [x for x in it] == [3]
        assert list(it) == []
        closed = ai.data.item.iter(source())
        next(closed); closed.close()
        assert list(closed) == []
        assert not hasattr(it, "__len__")
        class Known:
            def __init__(self): self.left = 2
            def __iter__(self): return self
            def __len__(self): return self.left
            def __next__(self):
                if not self.left: raise StopIteration
                self.left -= 1
                return self.left
        known = ai.compute.iter(Known())
        assert len(known) == 2 and next(known) == 1 and len(known) == 1 and known.left == 1
        known.left = 0
        assert list(known) == []
        if type(known) is not Known:
            assert type(known).__mro__ == (type(known), type(it), object)
            assert set(dir(type(it))) <= set(dir(type(known)))
        """,
        enable=enable,
    )
    if enable:
        assert counts(run.trace, "fetch.block") == ["1", "2"]


@BOTH
def test_an_iterator_that_begins_anew(enable: bool, traced: Callable[..., Run]) -> None:
    """Some loaders are their own iterator and reset themselves in `__iter__`: every epoch is whole."""
    run = traced(
        """
        class Pipeline:
            def __iter__(self):
                self.at = 0
                return self
            def __next__(self):
                if self.at == 3: raise StopIteration
                self.at += 1
                return self.at
        wrapped = ai.dataloader.fetch.iter(Pipeline())
        for _ in range(2):
            assert list(wrapped) == [1, 2, 3]
        """,
        enable=enable,
    )
    if enable:
        assert counts(run.trace, "fetch.block") == ["1", "2", "3"] * 2


@BOTH
def test_next_works_on_it_directly(enable: bool, traced: Callable[..., Run]) -> None:
    """Also on what is no iterator; a loop afterwards goes on from there, once."""
    run = traced(
        """
        assert next(ai.dataloader.fetch.iter([1])) == 1
        wrapped = ai.data.item.iter([1, 2, 3])
        assert next(wrapped) == 1
        assert list(wrapped) == [2, 3]
        assert list(wrapped) == [1, 2, 3]
        assert [next(wrapped) for _ in range(3)] == [1, 2, 3]
        for _ in range(2):
            try: next(wrapped)
            except StopIteration: pass
            else: raise SystemExit("more than there is")
        assert list(wrapped) == [1, 2, 3]
        """,
        enable=enable,
    )
    if enable:
        assert counts(run.trace, "item.block") == ["1", "2", "3"] * 4


@BOTH
def test_keywords_of_older_programs(enable: bool, traced: Callable[..., Run]) -> None:
    """`iter(iterator=...)` of a node, `iter(func=...)` of a dft_fn."""
    traced(
        """
        assert list(ai.data.item.iter(iterator=[1, 2], include_block=False)) == [1, 2]
        assert list(dft_fn("C").iter(func=[1, 2], name="l", iter_name="s")) == [1, 2]
        assert len(dft_fn("C").iter([1, 2])) == 2
        """,
        enable=enable,
    )


def test_the_start_up_of_a_loader_is_waiting_for_its_first_item(traced: Callable[..., Run]) -> None:
    """`iter(loader)` happens when the program asks for it, and counts for the first `.iter`."""
    run = traced(
        """
        import time
        class Slow:
            def __iter__(self):
                with ai.device: time.sleep(0.3)
                return iter([1, 2])
        wrapped = ai.dataloader.fetch.iter(Slow())
        for _ in wrapped:
            with ai.compute.forward: pass
        it = iter(ai.data.item.iter(Slow()))
        time.sleep(0.5)
        list(it)
        """
    )
    first, second = run.trace.named("fetch.iter")
    assert first.dur >= 300_000
    start_up, other_start_up = run.trace.named("device")
    assert second.ts >= start_up.end
    assert start_up.parent_id == first.id
    assert first.ts <= start_up.ts
    assert start_up.end <= first.end
    apart = run.trace.named("item.iter")[0]
    between = "what the program did between iter() and next() is not part of the wait"
    assert other_start_up.dur <= apart.dur < other_start_up.dur + 500_000, between


def test_a_loader_made_again_by_its_class_is_traced_too(traced: Callable[..., Run]) -> None:
    """Frameworks replace a sampler by calling `type(loader)(...)` with what they find in it."""
    run = traced(
        LOADER
        + """
wrapped = ai.dataloader.fetch.iter(Loader(2))
other = type(wrapped)(wrapped.n + 1, batch_size=wrapped.batch_size)
assert isinstance(other, Loader) and list(other) == [0, 1, 2] and Loader.made == 2
import copy, pickle
assert list(copy.copy(wrapped)) == [0, 1]
assert list(pickle.loads(pickle.dumps(wrapped))) == [0, 1]
"""
    )
    assert counts(run.trace, "fetch.block") == ["1", "2", "3", "1", "2", "1", "2"]


def test_stand_ins_do_not_pile_up(traced: Callable[..., Run]) -> None:
    """A loop in a loop makes no class per turn, and lets go of what it was given."""
    traced(
        """
        import gc, weakref
        class Loader(list): pass
        first = type(ai.data.item.iter(Loader()))
        fn = dft_fn("C")
        second = type(fn.iter(Loader()))
        for _ in range(100):
            assert type(ai.data.item.iter(Loader())) is first
            assert type(fn.iter(Loader())) is second
        loader = Loader([1])
        alive, alive_class = weakref.ref(loader), weakref.ref(Loader)
        list(ai.data.item.iter(loader))
        del loader, Loader, first, second
        gc.collect()
        assert alive() is None
        assert alive_class() is None
        """
    )


@BOTH
def test_asynchronous_iterables(enable: bool, traced: Callable[..., Run]) -> None:
    """The same for `async for`."""
    run = traced(
        """
        import asyncio
        class Stream:
            size = 2
            async def __aiter__(self):
                yield 1
                yield 2
        async def main():
            wrapped = ai.data.item.iter(Stream())
            for _ in range(2):
                assert [x async for x in wrapped] == [1, 2]
            assert wrapped.size == 2
        asyncio.run(main())
        """,
        enable=enable,
    )
    if enable:
        assert counts(run.trace, "item.block") == ["1", "2"] * 2
