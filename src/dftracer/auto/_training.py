"""The step rule: from the boundaries that torch shows to steps, epochs, evaluations and their numbers.

A step ends at the first training fetch, or the loader's end, after an optimizer step. Several fetches before
an optimizer step are accumulation; several optimizers, and repeated calls of one, belong to the open step.
Without a loader a step ends when an optimizer that has stepped already steps again after a new backward; in a
program without an optimizer of torch's, at the first training fetch after a backward. A fetch with gradients
off, or a loader that ends without any backward, is evaluation. Of nested spans (a closure given to
`optimizer.step`, an optimizer inside backward) the innermost counts.

Each training thread has its own `Training` (_threads.py). All times are those of the trace's clock,
in ns.
"""

# ruff: noqa: PLR1730 - a comparison is half the price of max(), and every step passes here

from __future__ import annotations

from typing import Any

from dftracer.auto._events import (
    AHEAD,
    BACKWARD,
    BLOCK,
    EPOCH,
    EVALUATE,
    FETCH,
    FORWARD,
    STEP,
    TRAIN,
    TRANSFER,
    Word,
    now,
)
from dftracer.auto._passes import Pass
from dftracer.auto._state import OPTIMIZERS, State
from dftracer.auto._step import Step

__all__ = ["Training"]

_MOST_GRADIENTS = 64  # calls of torch.autograd.grad in one step that are kept apart
_JOINED = 10_000_000  # ns between iter(loader) and its first next() that are still one wait


class Training(State):
    """The methods are called where the program crosses a boundary.

    The common path of a loop does not get here: native/module/step_rule.cpp handles it. Both must behave the
    same; this one is authoritative.
    """

    __slots__ = ()

    # What every event says ------------------------------------------------------------------------

    def _number(self, args: dict[str, Any]) -> None:
        step = self.step
        if step is not None and step.passes and self.evaluation is None:
            args["step"] = self.number
            if self.epoch is not None:
                args["epoch"] = self.epoch

    def write(self, word: Word, start: int, end: int, **args: Any) -> None:
        """An event of this thread, now that it is over."""
        if end > self._last:
            self._last = end
        step = self.step
        if args or self.epoch is None or step is None or not step.passes or self.evaluation is not None:
            self._number(args)
            word.write(start, end, args)
        else:
            word.log(start, end, "step", self.number, "epoch", self.epoch)

    # Loader ---------------------------------------------------------------------------------------

    def fetched(self, of: Pass, start: int, end: int, gradients: bool, facts: tuple[Any, ...]) -> None:
        """A batch has come; `facts`: which one, and who made it."""
        if of.fetches == 0 and of.began:
            if start - of.ready <= _JOINED:
                start = of.began
            else:  # the program did something else between iter() and next(); both were waiting
                FETCH.write(of.began, of.ready, {})
            of.first = start
        of.fetches += 1
        if not self._counts and gradients:
            AHEAD.log(start, end, *facts)
            return
        trains = of.trains or (gradients and self._loaders.get(of.loader) is not False)
        trains = trains and not self._framework_evaluates
        if trains:
            self._training_fetch(of, start, end)
        else:
            self._evaluation_fetch(of, start)
        self._free = end
        self._marked_forward = None
        if end > self._last:
            self._last = end
        numbers: dict[str, Any] = {}
        if of.trains:
            self._number(numbers)
        FETCH.log(start, end, *facts, *(part for pair in numbers.items() for part in pair))
        if trains:
            FORWARD.begins()

    def _training_fetch(self, of: Pass, start: int, end: int) -> None:
        if self.evaluation is not None:
            self._end_evaluation(self.evaluation[1].over or start)
        step = self.step
        if step is not None and not self._framework_steps:
            if _trained(step):
                known = of.trains or self._loaders.get(of.loader) or not step.passes
                if known or of in step.passes:
                    self._close(step, start)
                elif step.next_fetch is None:
                    step.next_fetch = (start, end, of)
            elif not step.backward and step.passes and all(p.died for p in step.passes):
                self.step = None  # a batch that was only looked at
        if self.step is None:
            self._open(start, end, of)
        elif self.step.next_fetch is None and of not in self.step.passes:
            self.step.passes.append(of)

    def _evaluation_fetch(self, of: Pass, start: int) -> None:
        if self.evaluation is not None:
            if self.evaluation[1] is of or not self.evaluation[1].over:
                return
            self._end_evaluation(self.evaluation[1].over)
        self.evaluation = (start, of)

    def loader_ended(self, of: Pass, start: int, end: int) -> None:
        """There are no more batches."""
        of.ended = end
        by_hand = FETCH.by_hand()  # it has asked for one more, too, and writes no event of that
        if not self._counts and not of.trains and self.evaluation is None:
            return
        step = self.step
        if self._framework_evaluates:
            self._free = end
            return
        if self.evaluation is not None and self.evaluation[1] is of:
            pass  # its last batch may still be in use: what comes next ends it
        elif of.trains or self._loaders.get(of.loader):
            if step is not None and _trained(step) and not self._framework_steps:
                self._close(step, start)
            self._leftover = (start, end)
        elif of.fetches:
            if step is not None:
                if step.next_fetch is not None and step.next_fetch[2] is of:
                    step.next_fetch = None
                elif step.passes == [of] and not step.backward:
                    self.step = None
            if not by_hand:  # else what learns may be known to the program alone; its own events tell
                self._loaders[of.loader] = False
                if self.evaluation is not None:
                    self._end_evaluation(self.evaluation[1].over or of.first or start)
                self.evaluation = (of.first or start, of)
        self._free = end

    def fetch_failed(self, of: Pass, start: int, end: int, error: BaseException) -> None:
        """The loader raised."""
        self.write(
            FETCH, of.began if of.fetches == 0 and of.began else start, end, error=type(error).__name__
        )

    # Compute --------------------------------------------------------------------------------------

    def transferred(self, tensor: int, start: int, end: int, moved: int, kind: str) -> None:
        """A tensor has been copied; forward begins after the copies of the batch."""
        if self.batch and tensor in self.batch:
            self._free = end
        self.write(TRANSFER, start, end, bytes=moved, kind=kind)

    def forward_begins(self, start: int) -> None:
        """A framework reports that the model begins."""
        if self._marked_forward is None and self._depth == 0:
            self._marked_forward = start

    def forward_ends(self, end: int) -> None:
        """Forward as reported by a framework; nothing is left to infer for this batch."""
        if self._marked_forward is not None:
            self.write(FORWARD, self._marked_forward, end)
            self._forward_done = end
        self._marked_forward = None

    def backward_begins(self, start: int) -> bool:
        """Gives whether it is the outermost: gradient checkpointing calls backward inside backward."""
        self._depth += 1
        if self._depth > 1:
            return False
        self._counts = True
        self._backwards += 1
        self._backward_start = start
        step = self.step
        if step is None or step.next_fetch is not None or self.evaluation is not None:
            step = self._step_of_backward(step, start)
        self._trains(step)
        step.backward = True
        self.gradients.clear()
        FORWARD.ends()
        BACKWARD.begins()
        begun = self._marked_forward or self._free
        if begun and start > begun and self._forward_done < begun:
            self.write(FORWARD, begun, start)
        self._marked_forward = None
        return True

    def _trains(self, step: Step) -> None:
        for of in step.passes:
            if not of.trains:
                of.trains = True
                self._loaders[of.loader] = True

    def took_gradients(self, start: int, end: int) -> None:
        """`torch.autograd.grad` is the backward of a step only if an optimizer uses what it gives."""
        if self._depth == 0:
            self.gradients.append((start, end))
            del self.gradients[:-_MOST_GRADIENTS]

    def _backward_by_gradients(self) -> None:
        """An optimizer steps: the gradients taken since the batch came were its backward."""
        taken, step = self.gradients, self.step
        self.gradients = []
        begun = self._marked_forward or self._free
        taken = [each for each in taken if each[0] >= begun]
        if not taken or (step is not None and step.backward and not step.stepped):
            return
        if step is None or step.next_fetch is not None or self.evaluation is not None:
            step = self._step_of_backward(step, taken[0][0])
        self._trains(step)
        self._backwards += 1
        step.backward = True
        for start, end in taken:
            if start > begun:
                self.write(FORWARD, begun, start)
            self.write(BACKWARD, start, end)
            begun = end
        self._marked_forward = None
        self._free = self._backward_end = begun

    def _step_of_backward(self, step: Step | None, start: int) -> Step:
        """Whether a batch trains shows only now."""
        if self.evaluation is not None:
            began, of = self.evaluation
            if of.over or (step is not None and step.opener is not None and not of.trains and step.stepped):
                self._end_evaluation(of.over or start)
            else:  # its batches were fetched without gradients, but it trains
                self.evaluation = None
                if step is None or step.stepped:
                    if step is not None:
                        self._close(step, began)
                    step = self._open(began, self._free, of)
                elif of not in step.passes:
                    step.passes.append(of)
        if step is not None and step.next_fetch is not None:
            fetch_start, fetch_end, of = step.next_fetch
            self._close(step, fetch_start)
            step = self._open(fetch_start, fetch_end, of)
        return self._open_without_fetch(start) if step is None else step

    def backward_ends(self, error: BaseException | None = None) -> None:
        """The outermost one, or one inside it."""
        if self._depth > 1:
            self._depth -= 1
            return
        self._depth = 0
        end = now()
        BACKWARD.ends()
        step = self.step
        if error is None:
            self.write(BACKWARD, self._backward_start, end)
        else:
            self.write(BACKWARD, self._backward_start, end, error=type(error).__name__)
        self._free = self._backward_end = end
        if step is not None and step.last_end > self._backward_start:
            step.last_end = end  # an optimizer in backward

    def optimizer_made(self) -> None:
        """Before it there is no training: without a loader, the first forward begins after it."""
        self._counts = True
        if not self._first:
            self._free = max(self._free, now())

    def optimizer_begins(self, key: int, start: int) -> None:
        """An optimizer step, or what stands around it (a gradient scaler)."""
        self._no_longer_alone()
        if self.gradients:
            self._backward_by_gradients()
        if self._optimizers:  # one that raised did not say when it ended
            self._optimizers = [each for each in self._optimizers if each[0] != key]
        self._optimizers.append((key, start))
        step = self.step
        if step is None:
            step = self._open_without_fetch(start)
        elif (not step.passes or step.passes[0].died) and not self._framework_steps and _without_loader(step):
            before = step.stepped_by.get(key)
            if before is not None and before != self._backwards:
                end = step.last_end
                self._close(step, end)
                step = self._open(end, end, None)
                step.backward = True
        if self.evaluation is None and step.next_fetch is None:
            self._trains(step)
        step.stepped_by[key] = self._backwards
        STEP.begins()
        if self._depth == 0:
            self._free = start  # a closure computes forward inside

    def optimizer_ends(self, key: int, end: int, skipped: bool = False) -> None:
        """It is over; of a closure's forward and backward inside, only the rest is the optimizer's."""
        self._no_longer_alone()
        start = None
        while self._optimizers:
            at, start = self._optimizers.pop()
            if at == key:
                break
        if start is None:
            return
        STEP.ends()
        if self._depth == 0:
            if start < self._backward_end:
                start = self._backward_end
            self._free = end
        step = self.step
        self.write(STEP, start, end, **({"skipped": 1} if skipped else {}))
        if step is not None:
            step.stepped = True
            step.last_end = end

    def _no_longer_alone(self) -> None:
        if self._optimizer:
            self._optimizers.append((self._optimizer, self._optimizer_start))
            self._optimizer = 0

    def interrupt(self, start: int, end: int) -> None:
        """Something else took this time (a checkpoint): forward does not begin before its end."""
        self._last = max(self._last, end)
        if self.step is None or self.step.stepped or not self.step.backward:
            self._free = max(self._free, end) if self._free >= start - _JOINED else self._free

    # Frameworks -----------------------------------------------------------------------------------

    def step_begins(self, start: int) -> None:
        """A framework that marks its steps: from now on its marks count, not the rule."""
        self._framework_steps = True
        if self.step is not None and self.step.stepped:
            self._close(self.step, start)

    def step_ends(self, end: int) -> None:
        """The framework's step is over."""
        if self.step is not None:
            self._close(self.step, end)
        self._framework_steps = False

    def batch_ends(self, end: int) -> None:
        """The framework is done with a batch: a step, unless its gradients were only accumulated."""
        if self.step is not None and self.step.stepped:
            self.step_ends(end)

    def resume(self, number: int, epoch: int) -> None:
        """A training that goes on with this step in this epoch."""
        if self.step is None:
            self.number = number
            self.epoch = epoch - 1 if epoch else None

    def evaluation_begins(self, start: int) -> None:
        """A framework evaluates from here to `evaluation_ends`."""
        if self.evaluation is not None:
            self._end_evaluation(start)
        if self.step is not None and self.step.stepped:
            self._close(self.step, start)
        self.evaluation = (start, Pass(0, 0, 0))
        self._framework_evaluates = True

    def evaluation_ends(self, end: int) -> None:
        """The end of what `evaluation_begins` began."""
        if self._framework_evaluates:
            self._framework_evaluates = False
            self._end_evaluation(end)

    # Opening and closing --------------------------------------------------------------------------

    def _open(self, start: int, body: int, of: Pass | None) -> Step:
        self.step = Step(start, body, of)
        BLOCK.begins()
        self._leftover = None
        self._first = self._first or start
        current = self._epoch_pass
        if of is None or of is current:
            return self.step
        if current is None or current.over or current.loader == of.loader:
            self._end_epoch()
            self.epoch = 0 if self.epoch is None else self.epoch + 1
            self._epoch_start, self._epoch_pass = start, of
        return self.step

    def _open_without_fetch(self, at: int) -> Step:
        """A step whose batch was in hand: the last of a loader that looks ahead, or one without any."""
        leftover = self._leftover
        if leftover is None:
            return self._open(self._free or at, self._free or at, None)
        FETCH.write(*leftover, {})
        return self._open(*leftover, None)

    def _close(self, step: Step, end: int) -> None:
        """The step is over; one that begins without a fetch ends with its optimizer."""
        opener = step.passes[0] if step.passes else None
        if opener is None or opener.died:
            if _without_loader(step):
                end = min(end, step.last_end or end)
            elif opener is not None and not opener.ended:
                end = max(step.last_end, min(end, opener.died))
        self._step_end = end
        if end > self._last:
            self._last = end
        if end < step.body:
            end = step.body
        if self.epoch is None:
            BLOCK.write(step.body, end, {"step": self.number})
        else:
            BLOCK.log(step.body, end, "step", self.number, "epoch", self.epoch)
        self.number += 1
        self.step = None

    def _end_evaluation(self, end: int) -> None:
        if self.evaluation is not None:
            start = self.evaluation[0]
            self.evaluation = None
            self._last = max(self._last, end)
            EVALUATE.write(start, max(start, end), {} if self.epoch is None else {"epoch": self.epoch})
            self._free = max(self._free, end)

    def _end_epoch(self, error: str | None = None) -> None:
        of = self._epoch_pass
        if of is None:
            return
        self._epoch_pass = None
        end = max(of.over, self._step_end, self._epoch_start) if error is None else self._last
        failed = {} if error is None else {"error": error}
        EPOCH.write(self._epoch_start, end, {"epoch": self.epoch, **failed})

    def finish(self, error: str | None = None) -> None:
        """The program, or the recording, ends: close what is open, and mark it where that is by a failure."""
        at = now()
        failed = {} if error is None else {"error": error}
        if self.evaluation is not None:
            over = self.evaluation[1].over
            self._end_evaluation(over or (at if error else max(self._last, self._free)))
        step = self.step
        if step is not None and _trained(step) and (error is None or step.next_fetch is None):
            opener = step.opener
            self._close(
                step, opener.died if opener is not None and opener.died else step.last_end or self._last
            )
        elif step is not None and error is not None and self._free and not self._depth:
            self.write(FORWARD, self._marked_forward or self._free, at, **failed)
        self.step = None
        self._end_epoch(error)
        if self._first:
            TRAIN.write(self._first, max(self._last, self._first), dict(failed))
        self._first = 0


def _trained(step: Step) -> bool:
    """Its batch has been used; without an optimizer, the program itself does what follows backward."""
    return step.stepped or (step.backward and OPTIMIZERS.none)


def _without_loader(step: Step) -> bool:
    """No loader began it, or one that gave a single batch for all that follows."""
    opener = step.opener
    return opener is None or bool(opener.died and not opener.ended and opener.died < step.last_end)
