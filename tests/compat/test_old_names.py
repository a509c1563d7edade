"""What programs import from DFTracer's Python bindings is here, and costs nobody else anything."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from support.process import Run

MODULES = {
    "dftracer.python.ai": ["ai", "DFTracerAI", "compute", "Compute"],
    "dftracer.python.ai_common": [
        *("DFTracerAI", "ProfileCategory", "AI", "START_METADATA_NAME", "STOP_METADATA_NAME"),
        *("P", "R", "T", "get_default_args", "profiler"),
    ],
    "dftracer.python.ai_init": ["ai", "checkpoint"],
    "dftracer.python.common": [
        *("dftracer", "dft_fn", "TagValue", "NoOpProfiler", "capture_signal"),
        *("TagValueTuple", "get_default_args", "P", "R", "T"),
    ],
    "dftracer.python.env": ["DFTRACER_ENABLE", "DFTRACER_ENABLE_ENV", "setup_stream_logger"],
    "dftracer.python.dbg": ["dftracer", "ai", "dynamo", "dft_fn", "create_backend"],
    "dftracer.python.dbg.ai": ["ai", "compute"],
    "dftracer.python.dbg.logger": ["dftracer", "dft_fn", "logger"],
    "dftracer.python.dbg.torch": ["trace_handler"],
    "dftracer.python.logger": ["dftracer", "dft_fn", "logger", "DFTRACER_ENABLE_ENV"],
    "dftracer.python.torch.common": ["trace_handler", "dftracer", "TagValue", "get_time_scale"],
    "dftracer.python.torch.profiler": ["trace_handler", "dftracer"],
    "dftracer.python.dynamo": ["CAT_DYNAMO", "CallStackRecord", "create_detailed_op_name", "dynamo"],
    "dftracer.logger": ["dftracer", "dft_fn"],
    "dftracer.dftracer_dbg": ["initialize", "get_time", "get_config", "log_event", "finalize"],
    "dftracer.python": [
        *("AI", "Compute", "Data", "DataLoader", "Communication", "Device", "Checkpoint", "Pipeline"),
        *("Other", "IO", "OtherEvent", "NoOpProfiler", "ProfilerProtocol", "StringEnum", "ROOT_NAME"),
        *("ROOT_CAT", "DFTRACER_ENABLE_ENV", "DFTRACER_INIT_ENV", "DFTRACER_LOG_LEVEL_ENV"),
        *("DFTRACER_TIME_METRIC_ENV", "setup_stream_logger", "get_time_scale", "__version__"),
        *("EntityStore", "EntityRole", "EntityRelation", "EntityID"),
    ],
}


@pytest.mark.parametrize("enable", [True, False], ids=["on", "off"])
def test_everything_can_be_imported(enable: bool, program: Callable[..., Run]) -> None:
    """Each name from each module, by `from … import …`, and torch is not imported for any."""
    lines = [f"from {module} import {name}" for module, names in MODULES.items() for name in names]
    run = program("\n".join([*lines, "import sys", "assert 'torch' not in sys.modules"]), enable=enable)
    assert run.stderr == ""


@pytest.mark.parametrize("enable", [True, False], ids=["on", "off"])
def test_annotating_imports_none_of_it(enable: bool, program: Callable[..., Run]) -> None:
    """`import dftracer.python` loads exactly the modules it loaded before there were older names."""
    run = program(
        """
        import json, sys
        before = set(sys.modules)
        from dftracer.python import ai, dft_fn, dftracer
        # The old names of modules are loaded on use, and have no file.
        loaded = {m for m in set(sys.modules) - before if hasattr(sys.modules[m], "__file__")}
        print(json.dumps(sorted(m for m in loaded if m.startswith("dftracer"))))
        print(json.dumps("logging" in sys.modules or "importlib.metadata" in sys.modules))
        """,
        enable=enable,
    )
    loaded, heavy = map(json.loads, run.stdout.splitlines())
    assert heavy is False
    assert [m for m in loaded if m.split(".")[-1][0] != "_"] == ["dftracer", "dftracer.python"]


@pytest.mark.parametrize(
    "imports",
    [
        "import dftracer.python.ai, dftracer.python.dynamo",
        "from dftracer.python.ai import compute; from dftracer.python.dynamo import create_backend",
        "import dftracer.python.dbg.ai; from dftracer.python.dbg import dynamo",
    ],
)
def test_modules_do_not_replace_objects(imports: str, program: Callable[..., Run]) -> None:
    """After `import dftracer.python.ai`, `dftracer.python.ai` is still the tree."""
    program(
        f"""
        {imports}
        import dftracer.python, dftracer.python.dbg, dftracer.python.torch
        from dftracer.python import AI, DFTracerAI, Dynamo, ai, dynamo
        assert dftracer.python.dbg.torch.trace_handler is dftracer.python.torch.trace_handler
        assert dftracer.python.torch.common.dftracer is dftracer.python.dbg.logger.dftracer
        for package in (dftracer.python, dftracer.python.dbg):
            assert isinstance(package.ai, AI) and package.ai is ai
            assert isinstance(package.dynamo, Dynamo) and package.dynamo is dynamo
        with ai.compute.forward:
            pass
        assert dynamo.create_backend and dynamo.CAT_DYNAMO == "dynamo"
        """
    )


@pytest.mark.parametrize("module", ["ai", "ai_common", "dbg", "dbg.ai", "dbg.logger", "env", "torch.common"])
def test_star_imports(module: str, program: Callable[..., Run]) -> None:
    """`from … import *` brings the names of a module that exists under another name only."""
    has = "trace_handler" if module == "torch.common" else "DFTRACER_ENABLE_ENV"
    program(f"from dftracer.python.{module} import *\nassert {has}")


def test_classes_of_the_tree(program: Callable[..., Run]) -> None:
    """The objects are of the named classes; one can be made apart from the tree, and pickled."""
    run = program(
        """
        import copy, pickle
        from dftracer.python import *
        from dftracer.python import dftracer
        log = dftracer.initialize_log(None, None, -1)
        for node, kind in (
            (ai, AI), (compute, Compute), (data, Data), (dataloader, DataLoader), (comm, Communication),
            (device, Device), (checkpoint, Checkpoint), (pipeline, Pipeline), (ai.other, Other),
            (data.io, IO), (checkpoint.io, IO),
        ):
            assert isinstance(node, kind) and isinstance(node, DFTracerAI)
        assert isinstance(ComputeEvent.FORWARD, StringEnum)
        assert (ROOT_NAME, ROOT_CAT) == ("ai_root", "ai_root")
        own = Compute(epoch=3)
        with own.forward:
            pass
        with pickle.loads(pickle.dumps(own.backward)):
            pass
        with Compute(enable=False).step:
            pass
        with pickle.loads(pickle.dumps(IO(cat="data", parent_name="mine").read)):
            pass
        assert pickle.loads(pickle.dumps(ai.checkpoint.io.write)) is ai.checkpoint.io.write

        @ai.data.io
        def lines():
            yield 1
        assert list(lines()) == [1]
        log.finalize()
        """
    )
    assert run.one("forward").args["epoch"] == 3
    assert [e.name for e in run.trace.events] == ["forward", "backward", "mine.io.read", "data.io"]


def test_logger_of_the_environment(program: Callable[..., Run]) -> None:
    """`setup_stream_logger` logs at the level of DFTRACER_LOG_LEVEL, once for each message."""
    run = program(
        """
        from dftracer.python.env import setup_stream_logger
        setup_stream_logger(); setup_stream_logger().error("told")
        setup_stream_logger().info("not told")
        """,
        enable=False,
    )
    assert run.stderr == "[ERROR] told\n"


def test_helpers_of_the_common_module(program: Callable[..., Run]) -> None:
    """Defaults of functions, the type of a tag's value, the names of moments, the logger."""
    run = program(
        """
        from dftracer.python import ai, dftracer
        from dftracer.python.ai_common import START_METADATA_NAME, STOP_METADATA_NAME
        from dftracer.python.common import P, R, T, TagDType, TagValue, TagValueTuple, get_default_args
        from dftracer.python.dbg.logger import logger
        from dftracer.python.torch.common import dftracer as of_torch

        assert get_default_args(lambda a, b=2, *c, d="x", **e: None) == {"b": 2, "d": "x"}
        pair: TagValueTuple = TagValue("3", TagDType.INT).value()
        assert pair == (0, 3) and TagValueTuple.__origin__ is tuple
        assert (P.__name__, R.__name__, T.__name__) == ("P", "R", "T")
        assert of_torch is dftracer
        logger.error("told")
        log = dftracer.initialize_log(None, None, -1)
        ai.pipeline.epoch.start(metadata=True)
        ai.pipeline.epoch.stop(metadata=True)
        log.finalize()
        print(f"epoch.{START_METADATA_NAME} epoch.{STOP_METADATA_NAME}")
        """
    )
    assert run.stderr == "[ERROR] told\n"
    written = [record.args["name"] for record in run.trace.metadata("CM")]
    assert set(run.stdout.split()) <= set(written)


def test_nothing_profiler(program: Callable[..., Run]) -> None:
    """`NoOpProfiler` takes every call; the module `dftracer.dftracer` has the same functions."""
    program(
        """
        import dftracer.dftracer as native
        from dftracer.python import NoOpProfiler
        noop = NoOpProfiler()
        noop.initialize("a", "b", 1); noop.enter_event(); noop.exit_event(); noop.finalize()
        noop.log_event("a", "b", 0, 1, {}, {}, {}); noop.log_metadata_event("a", "b"); noop.mark_used("a")
        assert (noop.get_time(), noop.get_config("x"), noop.declare_entity("t", "k", 0, "")) == (0, "", 0)
        calls = [n for n in dir(NoOpProfiler) if n[0] != "_" and "entit" not in n]
        assert not [n for n in calls if not hasattr(native, n)]
        """
    )


def test_the_enums_name_the_events_of_the_tree() -> None:
    """The tree writes its words as plain text; the enums, which are slow to import, have the same."""
    import dftracer.python as annotations  # noqa: PLC0415

    for category in annotations.ProfileCategory:
        branch = getattr(annotations.ai, category)
        known = {"comm": "Communication", "dataloader": "DataLoader"}.get(category, category.capitalize())
        words = getattr(annotations, f"{known}Event")
        assert {str(word) for word in words} == {
            name for name, child in vars(branch).items() if type(child) is annotations.DFTracerAI
        }
    assert [getattr(annotations.ai.data.io, word).name for word in annotations.IOEvent] == [
        *("data.io.open", "data.io.read", "data.io.write", "data.io.close")
    ]
