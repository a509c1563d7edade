"""Reading traces: every dialect, and files as crashes leave them."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dftracer.format import members, reader, records

SEED = (
    '{"id":1,"name":"HH","cat":"dftracer","pid":10,"tid":10,"ph":"M",'
    '"args":{"hhash":"6882804a826580cd","name":"vm","value":"6882804a826580cd"}}\n'
    '{"id":2,"name":"start","cat":"dftracer","pid":10,"tid":10,"ts":5,"dur":0,"ph":"X",'
    '"args":{"hhash":"6882804a826580cd","p_idx":-1,"cwd":"457466652c169c22","ppid":9,"level":1}}\n'
    '{"id":4,"name":"fetch.iter","cat":"dataloader","pid":10,"tid":11,"ts":6,"dur":7,"ph":"X",'
    '"args":{"hhash":"6882804a826580cd","p_idx":3,"count":"1","note":"7","level":2}}\n'
    '{"id":5,"name":"end","cat":"dftracer","pid":10,"tid":10,"ts":9,"dur":0,"ph":"X",'
    '"args":{"hhash":"6882804a826580cd","p_idx":-1,"num_events":3,"level":1}}\n'
)


def trace(path: Path, data: str | bytes) -> reader.TraceText:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return reader.read_trace(path)


def event(number: int, /, **args: Any) -> str:
    record = {"id": number, "name": "e", "cat": "c", "pid": 1, "tid": 1, "ts": number, "dur": 1, "ph": "X"}
    return json.dumps({**record, "args": args}, separators=(",", ":")) + "\n"


def member(text: bytes, other: bytes = b"") -> bytes:
    """A gzip member with the index in its header."""
    deflate = zlib.compressobj(wbits=-15)
    body = deflate.compress(text) + deflate.flush() + struct.pack("<II", zlib.crc32(text), len(text))
    size = 12 + len(other) + 36 + len(body)
    index = members.INDEX_STRUCT.pack(size, len(text), text.count(b"\n"), 0, 1, 1)
    extra = other + members.INDEX_ID + struct.pack("<H", 32) + index
    return members.MAGIC + b"\x04\0\0\0\0\0\xff" + struct.pack("<H", len(extra)) + extra + body


def ids(text: reader.TraceText) -> list[int]:
    return [record["id"] for record in text.records]


def test_the_dialect_we_write_is_read_as_it_is(tmp_path: Path) -> None:
    """Brackets are skipped, `count` becomes a number, a user's "7" stays a string, hashes resolve."""
    text = trace(tmp_path / "t.pfw", "[\n" + SEED + "]\n")
    assert ids(text) == [1, 2, 4, 5]
    assert [record["name"] for record in text.events] == ["start", "fetch.iter", "end"]
    args = text.records[2]["args"]
    assert (args["count"], args["note"], args["p_idx"], args["level"]) == (1, "7", 3, 2)
    assert text.resolve("6882804a826580cd") == "vm"
    assert text.resolve("0000000000000000") is None
    assert not text.problems


def test_the_2023_dialect_has_numbers_as_strings_and_raw_names(tmp_path: Path) -> None:
    line = (
        '{"id":"3","name":"read","cat":"POSIX","pid":"7","tid":"8","ts":"1000","dur":"20","ph":"X",'
        '"args":{"hostname":"node1","filename":"/data/x","size":"4096","ret":"-1","epoch":"2"}}\n'
    )
    (record,) = trace(tmp_path / "t.pfw", "[\n" + line).records
    assert [record[key] for key in ("id", "pid", "tid", "ts", "dur")] == [3, 7, 8, 1000, 20]
    assert record["args"] == {"hostname": "node1", "filename": "/data/x", "size": 4096, "ret": -1, "epoch": 2}


@pytest.mark.parametrize(("number", "as_hex"), [(48879, "000000000000beef"), (2**64 - 1, "f" * 16)])
def test_integer_hashes_become_hex(number: int, as_hex: str, tmp_path: Path) -> None:
    """DFTracer 1.0.5-1.0.8: the hash in a use and in its FH record agree, as number or as digits."""
    lines = (
        f'{{"id":1,"name":"FH","cat":"dftracer","pid":1,"tid":1,"ph":"M","args":{{"name":"/x","value":{number}}}}}\n'
        f'{{"id":2,"name":"open","cat":"POSIX","pid":1,"tid":1,"ts":1,"dur":1,"ph":"X","args":{{"fhash":"{number}"}}}}\n'
    )
    text = trace(tmp_path / "t.pfw", lines)
    assert text.events[0]["args"]["fhash"] == as_hex
    assert text.resolve(as_hex) == "/x"


def test_the_2x_dialect_has_numeric_phases_and_no_metadata_ids(tmp_path: Path) -> None:
    lines = (
        '{"name":"HH","cat":"dftracer","type":1,"pid":1,"tid":1,"ph":4,"args":{"hhash":"aa","name":"vm","value":"aa"}}\n'
        '{"id":1,"name":"g","cat":"c","type":6,"pid":1,"tid":1,"ts":9,"dur":4,"ph":1}\n'
        '{"id":2,"name":"q","cat":"c","type":6,"pid":1,"tid":1,"ts":9,"ph":2,"args":{"v":1.5}}\n'
        '{"id":3,"name":"r","cat":"c","type":6,"pid":1,"tid":1,"ts":9,"dur":4,"ph":3,"args":{"count":12}}\n'
    )
    metadata, plain, counter, aggregate = trace(tmp_path / "t.pfw", lines).records
    assert [record["ph"] for record in (metadata, plain, counter, aggregate)] == ["M", "X", "C", "A"]
    assert metadata["id"] is None
    assert plain["args"] == {}
    assert plain["type"] == 6
    assert aggregate["args"] == {"count": 12}


def test_other_time_units_of_2x_become_microseconds(tmp_path: Path) -> None:
    lines = (
        '{"name":"CM","cat":"dftracer","pid":1,"tid":1,"ph":4,"args":{"name":"time_metric","value":"NS"}}\n'
        '{"id":1,"name":"g","cat":"c","pid":1,"tid":1,"ts":1794731976679947123,"dur":4999,"ph":1}\n'
    )
    (record,) = trace(tmp_path / "t.pfw", lines).events
    assert (record["ts"], record["dur"]) == (1794731976679947, 4)


@pytest.mark.parametrize(
    "text",
    [
        "[" + event(1) + event(2),
        "[\n" + event(1).replace("\n", ",\n") + event(2).replace("\n", ",\n") + "]",
        "[\n\n" + event(1) + "   \n" + event(2).rstrip() + "]\n",
        "\n".join((event(1).strip(), event(2).strip())),
        "[\r\n" + event(1).replace("\n", "\r\n") + event(2).replace("\n", "\r\n"),
        "[\n" + event(1) + event(2) + "\0" * 100,
    ],
)
def test_harmless_spellings_are_no_problem(text: str, tmp_path: Path) -> None:
    """Commas, blank lines, brackets on the line of a record, no last newline, CRLF, padding."""
    read = trace(tmp_path / "t.pfw", text)
    assert ids(read) == [1, 2]
    read.problems.missing_end.clear()
    assert not read.problems


def test_bad_lines_are_skipped_and_counted_by_reason(tmp_path: Path) -> None:
    bad = (
        '{"id":1,\nnonsense\n5\n{"name":"x","ph":"Q"}\n{"ph":"X"}\n'
        '{"name":"x","ph":"X","pid":"p","ts":1,"dur":1}\n'
    )
    text = trace(tmp_path / "t.pfw", bad + event(9))
    assert ids(text) == [9]
    assert text.problems.skipped == {
        "not JSON": 2,
        "not an object": 1,
        "unknown phase": 1,
        "no name": 1,
        "a field is not a number": 1,
    }
    assert any("1 line skipped: unknown phase" in line for line in text.problems.lines())


def test_a_cut_last_line_is_said(tmp_path: Path) -> None:
    text = trace(tmp_path / "t.pfw", "[\n" + event(1) + event(2)[:30])
    assert ids(text) == [1]
    assert text.problems.cut_last_line == [str(tmp_path / "t.pfw")]
    assert not text.problems.skipped


def test_invalid_utf8_costs_a_character_not_a_record(tmp_path: Path) -> None:
    text = trace(tmp_path / "t.pfw", event(1, k="A").encode().replace(b'"A"', b'"\xff"'))
    assert text.records[0]["args"]["k"] == "\ufffd"


def test_all_members_of_a_gzip_are_read(tmp_path: Path) -> None:
    members = b"".join(gzip.compress(event(n).encode()) for n in range(50))
    assert ids(trace(tmp_path / "t.pfw.gz", members)) == list(range(50))


def test_gzip_is_known_by_content_not_by_name(tmp_path: Path) -> None:
    assert ids(trace(tmp_path / "t.pfw", gzip.compress(event(1).encode()))) == [1]
    assert ids(trace(tmp_path / "u.pfw.gz", event(1))) == [1]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_gzip_cut_anywhere_gives_a_prefix(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Nothing is made up, nothing before the last member is lost, and the cut is said."""
    members = [
        gzip.compress("".join(event(10 * m + n, k="x" * n) for n in range(10)).encode()) for m in range(3)
    ]
    whole = b"".join(members)
    cut = data.draw(st.integers(0, len(whole)))
    path = tmp_path_factory.mktemp("cut") / "t.pfw.gz"
    text = trace(path, whole[:cut])
    assert ids(text) == list(range(len(text.records)))
    edges = [0, len(members[0]), len(members[0]) + len(members[1]), len(whole)]
    complete = sum(edge <= cut for edge in edges[1:])
    assert len(text.records) >= 10 * complete
    if cut >= 3:
        assert bool(text.problems.truncated_gzip) == (cut not in edges and cut - edges[complete] >= 3)


def test_reading_goes_on_behind_a_damaged_member(tmp_path: Path) -> None:
    members = [gzip.compress(event(n).encode() * 3) for n in range(3)]
    damaged = bytearray(members[1])
    damaged[12:20] = b"\xff" * 8
    text = trace(tmp_path / "t.pfw.gz", members[0] + bytes(damaged) + members[2])
    assert ids(text)[:3] == [0] * 3
    assert ids(text)[-3:] == [2] * 3
    assert text.problems.corrupt_gzip == [str(tmp_path / "t.pfw.gz")]


def test_zero_padding_behind_a_member_is_no_damage(tmp_path: Path) -> None:
    text = trace(tmp_path / "t.pfw.gz", gzip.compress(event(1).encode()) + b"\0" * 700_000)
    assert ids(text) == [1]
    assert not text.problems.corrupt_gzip
    assert not text.problems.truncated_gzip


@given(st.binary(max_size=300), st.booleans())
@settings(deadline=None)
def test_no_bytes_raise(tmp_path_factory: pytest.TempPathFactory, data: bytes, as_gzip: bool) -> None:
    path = tmp_path_factory.mktemp("any") / "t.pfw"
    trace(path, (members.MAGIC + data) if as_gzip else data)


@given(
    st.dictionaries(
        st.text(), st.none() | st.integers() | st.text() | st.floats(allow_nan=False) | st.booleans()
    )
)
@settings(deadline=None)
def test_user_args_come_back_exactly(tmp_path_factory: pytest.TempPathFactory, args: dict[str, Any]) -> None:
    """Any key, any value, but for the keys that the format itself uses."""
    own = {key: value for key, value in args.items() if key not in records.INTEGER_ARGS | records.HASH_ARGS}
    path = tmp_path_factory.mktemp("args") / "t.pfw"
    (record,) = trace(path, event(1, **own)).records
    assert record["args"] == own


def test_a_process_without_end_is_named(tmp_path: Path) -> None:
    text = trace(tmp_path / "t.pfw", SEED + event(1))
    assert text.problems.missing_end == [1]


def test_a_recovered_process_is_named_and_no_loss(tmp_path: Path) -> None:
    text = trace(tmp_path / "t.pfw", SEED.replace('"num_events":3', '"num_events":3,"recovered":true'))
    assert text.problems.recovered == [10]
    assert not text.problems


def test_an_end_in_a_later_part_counts_for_the_process(tmp_path: Path) -> None:
    head, _, end = SEED.strip().rpartition("\n")
    (tmp_path / "a.pfw").write_text(head + "\n")
    (tmp_path / "b.pfw").write_text(end + "\n")
    assert not reader.read_trace(tmp_path).problems


def test_directories_are_searched_and_other_files_left_alone(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.pfw").write_text(event(1))
    (tmp_path / "sub" / "a.pfw.gz").write_bytes(gzip.compress(event(2).encode()))
    (tmp_path / "notes.txt").write_text("no trace")
    assert ids(reader.read_trace(tmp_path)) == [1, 2]
    assert ids(reader.read_trace([tmp_path / "b.pfw", tmp_path / "sub"])) == [1, 2]


def test_a_missing_file_is_a_problem_not_an_exception(tmp_path: Path) -> None:
    path = str(tmp_path / "none.pfw")
    assert reader.read_trace([path]).problems.unreadable == {path: "No such file or directory"}


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("name", ["t.pfw.gz", "t.pfw"])
def test_reading_goes_on_where_the_text_ended_before(
    name: str, indexed: bool, merged: bool, tmp_path: Path
) -> None:
    """Even if the writer has merged old and new text into one member since."""
    compress = member if indexed else gzip.compress
    old, new = event(1).encode(), event(2).encode() + event(3).encode()
    path = tmp_path / name

    def write(*texts: bytes) -> None:
        path.write_bytes(b"".join(compress(text) if name.endswith(".gz") else text for text in texts))

    write(old)
    seen = reader.text_size(path)
    assert seen == len(old)
    write(old + new) if merged else write(old, new)
    assert [record["id"] for record in reader.read_records(path, skip=seen)] == [2, 3]
    assert reader.text_size(path) == len(old + new)
    assert list(reader.read_records(path, skip=len(old + new))) == []


def test_records_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    """A long file costs no memory before its records are taken."""
    path = tmp_path / "t.pfw"
    path.write_text("".join(event(n) for n in range(20_000)))
    records = reader.read_records(path)
    assert [next(records)["id"] for _ in range(3)] == [0, 1, 2]
    records.close()  # type: ignore[attr-defined]


def test_the_index_of_a_member_is_found_among_other_subfields() -> None:
    text = event(1).encode()
    whole = member(text, b"XX" + struct.pack("<H", 3) + b"abc")
    assert gzip.decompress(whole) == text
    assert members.member_index(whole[:64]) == members.MemberIndex(len(whole), len(text), 1, 0, 1, 1)
    assert members.member_index(gzip.compress(text)) is None
    assert members.member_index(whole[:20]) is None


def test_an_end_that_continues_is_not_the_end(tmp_path: Path) -> None:
    text = trace(tmp_path / "t.pfw", SEED.replace('"num_events":3', '"num_events":3,"continues":1'))
    assert text.problems.missing_end == [10]
