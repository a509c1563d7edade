"""Secrets do not leave the machine: what is replaced, and what is not."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from dftracer.format.members import gzip_member, member_index
from dftracer.format.redaction import HIDDEN, redact, redact_lines, redact_members, redact_rows
from dftracer.load.rows import COLUMNS, pack_rows, parse_rows

SECRET = "Xq7-hunter2_Zz"


@pytest.mark.parametrize(
    "text",
    [
        "train.py --token {}",
        "train.py --hf-token={} --lr 3",
        "python;train.py;--password;{};--lr;3",
        "--wandb_api_key {}",
        "--api-key={}",
        "--secret {}",
        "WANDB_API_KEY={} python train.py",
        "AWS_SECRET_ACCESS_KEY={}",
        "env MY_PASSWORD={} train",
        "--db-passwd {}",
        '{{"client_secret": "{}"}}',
        r"{{\"password\":\"{}\"}}",
        "postgres://me:{}@db/x",
        "https://user:{}@host:8080/path",
        "-H 'Authorization: Bearer {}'",
        "https://h/x?X-Amz-Signature={}&a=1",
        "https://h/x?a=1&sig={}",
        "https://h/x?access_token={}",
        "PGPASSWORD={} psql",
        "SSHPASS={} sshpass -e ssh host",
        "--hfToken {} --lr 3",
        '{{"clientSecret": "{}", "lr": 3}}',
        "curl -u me:{} https://host",
        "curl;-u;me:{};https://host",
        "--pass {}",
        "OPENAI_KEY={} train",
        "SECRET_KEY_BASE={}",
        "REDISCLI_AUTH={}",
        "--wandb-key {}",
        "-H 'Cookie: {}'",
        "-----BEGIN RSA PRIVATE KEY-----{}-----END RSA PRIVATE KEY-----",
    ],
)
def test_the_value_goes_and_the_rest_stays(text: str) -> None:
    before, _, after = text.replace("{{", "{").replace("}}", "}").partition("{}")
    assert redact(before + SECRET + after) == before + HIDDEN + after


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("--password 'my {}' --lr 3", f"--password '{HIDDEN}' --lr 3"),
        ('--password "my {}" --lr 3', f'--password "{HIDDEN}" --lr 3'),
        (r'{{"command":"x --password \"my {}\" -y"}}', rf'{{{{"command":"x --password \"{HIDDEN}\" -y"}}}}'),
        ("https://user:p@{}@host/x", f"https://user:{HIDDEN}@host/x"),
    ],
)
def test_all_of_a_value_goes(text: str, left: str) -> None:
    assert redact(text.format(SECRET)) == left.replace("{{", "{").replace("}}", "}")


def test_json_stays_json() -> None:
    result = {
        "command": "train --token ",
        "a": "x password: ",
        "b": ["--secret", "--api-key "],
        "c": {"token": ""},
    }
    assert json.loads(redact(json.dumps(result))).keys() == result.keys()
    assert json.loads(redact(json.dumps(result, separators=(",", ":")))).keys() == result.keys()


@pytest.mark.parametrize(
    "secret",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "hf_abcdefghijklmnopqrstuvwxyz0123456789",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        "github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuvwxyz",
        "glpat-abcdefghijklmnopqrst",
        "sk-proj-abcdefghijklmnopqrstuvwx",
        "xoxb-1234567890-abcdef",
        "AIzaSyA1234567890abcdefghijklmnopqrstuv",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abcdefghijk",
        "sk_live_51Habcdefghijklmnop",
        "dapi0123456789abcdef0123456789abcdef",
    ],
)
def test_keys_that_are_known_by_their_form(secret: str) -> None:
    assert redact(f"train.py {secret} --lr 3") == f"train.py {HIDDEN} --lr 3"


@pytest.mark.parametrize(
    "text",
    [
        "train.py --tokenizer gpt2 --max-tokens 512",
        "python train.py --lr 3 --seed 7",
        "https://host:8080/path?x=1",
        "s3://bucket/job/trace",
        "--token --lr 3",
        "/data/secrets_of_the_sea/part-0001.npy",
        "--keyboard us --passes 3 --compass north",
        "--sort-key name --monkey 3 -u 3",
        "x" * 200_000,  # in one pass
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


def _line(kind: str, /, **args: str) -> bytes:
    record = {"id": 2, "name": kind, "cat": "dftracer", "pid": 1, "tid": 1, "ph": "M", "args": args}
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


@pytest.mark.parametrize("kind", ["HH", "run"])  # where the command is, and where earlier versions had it
def test_records_stay_records(kind: str) -> None:
    value = f'python -c "import x" --password {SECRET} "ünï\\n" --x \\'
    text = _line(kind, name="vm", value="r", command=value) + _line("FH", name=f"/a/token={SECRET}")
    first, second = redact_lines(text).splitlines()
    assert json.loads(first)["args"]["command"] == value.replace(SECRET, HIDDEN)
    # The name of a file is the user's data: events refer to it.
    assert second + b"\n" == text.splitlines(keepends=True)[1]


def test_only_members_with_secrets_are_packed_anew() -> None:
    secret = _line("SH", name=f"train.py;--token;{SECRET}")
    plain = b'{"id":3,"name":"forward","cat":"compute","pid":1,"tid":1,"ts":5,"dur":1,"ph":"X","args":{}}\n'
    members = [gzip_member(secret, 1, 3, 4), gzip_member(plain, 1, 5, 6)]
    clean = redact_members(b"".join(members))
    assert clean.endswith(members[1])
    head = clean[: -len(members[1])]
    index = member_index(head)
    assert index is not None
    assert (index.member_size, index.lines, index.first_ts, index.last_ts) == (len(head), 1, 3, 4)
    assert gzip.decompress(head) == secret.replace(SECRET.encode(), HIDDEN.encode())


def test_facts_of_step_rows() -> None:
    table = np.zeros((3, len(COLUMNS)), np.int64)
    table[:, 1] = range(3)
    data = pack_rows(table, {"run": "r", "command": f"train.py --token {SECRET}"})
    clean = redact_rows(data + b"rest")
    assert SECRET.encode() not in clean
    assert clean.endswith(b"rest")
    file = parse_rows(clean.removesuffix(b"rest"))
    assert (file.facts["run"], file.facts["command"]) == ("r", f"train.py --token {HIDDEN}")
    assert file.damaged == 0
    assert file.column("step").tolist() == [0, 1, 2]


def test_members_of_other_writers() -> None:
    secret = _line("SH", name=f"train.py;--token;{SECRET}")
    clean = redact_members(gzip.compress(secret) + gzip.compress(b"[\n") + b"rest")
    assert SECRET.encode() not in gzip.decompress(clean.removesuffix(b"rest"))
    assert clean.endswith(gzip.compress(b"[\n")[-8:] + b"rest")
