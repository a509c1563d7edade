"""Secrets in what a trace says about its program: command lines, variables, addresses with passwords.

Traces stay as they are on the machine that wrote them. What leaves it goes through `redact` first.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator

from dftracer.format.members import MAGIC, ROW_BLOCK, ROWS_MAGIC, gzip_member, member_index

HIDDEN = "[redacted]"

# The last word of an option's or a variable's name: --hf-token, WANDB_API_KEY, PGPASSWORD, "clientSecret".
_NAMED = (
    r"password|passwd|passphrase|(?<![A-Za-z0-9])pass|sshpass|pwd|secret|token|credentials?|authorization"
    r"|(?:private|api|access|secret|account|auth|signing|encryption|ssh|wandb)[-_]?key"
)
# A value ends at white space, at what ends it in JSON, a shell or a query, or at a literal \n or \t; one in
# quotation marks ends with them. A mark before a comma or bracket has ended a text of JSON.
_VALUE = r"""(?:(?!\\[nrt])[^\s"'&,;|<>\\]|\\(?![nrt"']))+"""
_QUOTED = r"""(?<=")(?:[^"\\\r\n]|\\(?![nrt"]))+(?=\\?")|(?<=')[^'"\\\r\n]+(?=')"""
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # https://user:password@host
    (
        re.compile(r"""(?P<keep>(?<![A-Za-z0-9+.-])[A-Za-z0-9+.-]{1,40}://[^\s/:@"'\\]*:)[^\s/"'\\]+(?=@)"""),
        r"\g<keep>",
    ),
    # Authorization: Bearer abc
    (re.compile(r"(?P<keep>\b(?:Bearer|Basic)(?: |%20))[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE), r"\g<keep>"),
    (re.compile(r"""(?P<keep>\bcookie:\s*)[^"'\\\r\n]+""", re.IGNORECASE), r"\g<keep>"),
    # curl -u user:password
    (re.compile(rf"(?P<keep>(?:^|[\s;])(?:-u|--user)[\s=;]\s*[^\s:;\"']+:){_VALUE}"), r"\g<keep>"),
    # --token=abc, --token abc, API_KEY=abc, "password": "abc" (in JSON inside JSON, too), ?sig=abc.
    # Traces put semicolons between arguments.
    (
        re.compile(
            rf"""(?P<keep>(?<![A-Za-z0-9_.-])[A-Za-z0-9_.-]{{0,200}}(?:{_NAMED})"""
            rf"""(?:\\?["'])?(?:\s*[=:;]\s*|\s+)(?:\\?["'])?)"""
            rf"""(?!(?<=["'])\s*[,}}\]:]|-|\[redacted\]|Bearer\b|Basic\b|{_NAMED}\b)(?:{_QUOTED}|{_VALUE})""",
            re.IGNORECASE,
        ),
        r"\g<keep>",
    ),
    # OPENAI_KEY=abc, SECRET_KEY_BASE=abc, REDISCLI_AUTH=abc
    (
        re.compile(
            rf"(?P<keep>\b[A-Z0-9_]{{0,200}}(?:_KEY|SECRET|TOKEN|_AUTH|_PASS)(?:_[A-Z0-9]+)?=)"
            rf"(?!\[redacted\]){_VALUE}"
        ),
        r"\g<keep>",
    ),
    (
        re.compile(rf"(?P<keep>[?&](?:sig|signature|x-(?:amz|goog)-\w+)=){_VALUE}", re.IGNORECASE),
        r"\g<keep>",
    ),
    # Keys that are known by their form, wherever they are.
    (
        re.compile(
            r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bhf_[A-Za-z0-9]{20,}|\bgh[pousr]_[A-Za-z0-9]{30,}"
            r"|\bgithub_pat_\w{30,}|\bglpat-[\w-]{20,}|\bsk-[A-Za-z0-9_-]{20,}|\bxox[abprs]-[A-Za-z0-9-]{10,}"
            r"|\bAIza[\w-]{35}|\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*|\bnpm_[A-Za-z0-9]{30,}|\bpypi-[\w-]{30,}"
            r"|\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}|\bdapi[0-9a-f]{32}\b"
        ),
        "",
    ),
    (
        re.compile(r"(?P<keep>-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?=-----END|$|[\"'])", re.DOTALL),
        r"\g<keep>",
    ),
)
# The header of a block of step rows (native/format/step_row.hpp).
# Only these records hold text about the program; in all others names and paths are the user's data.
_TELLING = re.compile(rb'"name":"(?:HH|SH|CM|PR|run|start|process_name)","cat":')


def redact(text: str) -> str:
    """The same text with every secret replaced; JSON stays JSON."""
    for pattern, keep in _PATTERNS:
        text = pattern.sub(keep + HIDDEN, text)
    return text


def redact_rows(data: bytes) -> bytes:
    """The same file of step rows; of its blocks only those with facts hold text."""
    out = []
    at = 0
    while at + ROW_BLOCK.size <= len(data):
        magic, kind, rows, size, _ = ROW_BLOCK.unpack_from(data, at)
        end = at + ROW_BLOCK.size + size
        if magic != ROWS_MAGIC:
            break
        payload = data[at + ROW_BLOCK.size : end]
        clean = payload
        if kind == b"H":
            text = payload.decode("utf-8", "surrogateescape")
            clean = redact(text).encode("utf-8", "surrogateescape")
        if clean == payload:
            out.append(data[at:end])
        else:
            out.append(ROW_BLOCK.pack(magic, kind, rows, len(clean), zlib.crc32(clean)) + clean)
        at = end
    return b"".join([*out, data[at:]])


def redact_lines(text: bytes) -> bytes:
    """The same records, with secrets replaced in those that tell about the program."""
    if _TELLING.search(text) is None:
        return text
    return b"".join(
        redact(line.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
        if _TELLING.search(line)
        else line
        for line in text.splitlines(keepends=True)
    )


def redact_members(packed: bytes) -> bytes:
    """The same members; those with secrets are packed anew. What is no member of ours stays as it is."""
    return b"".join(_redacted_members(packed))


def _redacted_members(packed: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(packed):
        index = member_index(packed[at : at + 64])
        if index is None or at + index.member_size > len(packed):
            yield from _redacted_foreign(packed[at:])
            return
        member = packed[at : at + index.member_size]
        at += index.member_size
        try:
            text = zlib.decompress(member, wbits=31)
        except zlib.error:
            yield member
            continue
        clean = redact_lines(text)
        if clean == text:
            yield member
        else:
            yield gzip_member(clean, index.lines, index.first_ts, index.last_ts, level=6)


def _redacted_foreign(packed: bytes) -> Iterator[bytes]:
    """Members without an index: of another writer, or cut off."""
    while packed:
        decoder = zlib.decompressobj(wbits=31)
        try:
            text = decoder.decompress(packed) if packed.startswith(MAGIC) else b""
        except zlib.error:
            text = b""
        if not text or not decoder.eof:
            # Nothing can be said about what is in it: what was read of it is kept, the rest is not text.
            clean = redact_lines(text)
            yield packed if clean == text else gzip_member(clean, clean.count(b"\n"), 0, 0)
            return
        clean = redact_lines(text)
        size = len(packed) - len(decoder.unused_data)
        yield packed[:size] if clean == text else gzip_member(clean, clean.count(b"\n"), 0, 0)
        packed = decoder.unused_data
