"""Fetching one file whole over a bad line: resume, retries, limits, and its checksum at the end."""

import hashlib
import os
import re
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from functools import partial
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from dapperfl.data.catalogue import Download
from dapperfl.errors import ConfigError, DataError

Seen = Callable[[int, int], None]  # bytes there are, of how many
_CHUNK = 2**16
_GAIN = 2**20  # bytes that make a failed attempt worth another full set of attempts
_PASSING = {408, 425, 429, 500, 502, 503, 504}  # answers that may be different next time
_LINE = (URLError, TimeoutError, ConnectionError, HTTPException, ssl.SSLError)


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long to wait for a server, and which one to ask."""

    timeout: float = 30.0  # seconds without a byte
    attempts: int = 5  # failed ones in a row, for each address
    pause: float = 1.0  # seconds before the second attempt; doubled each time
    mirror: str | None = None  # take every file from below this address instead

    def __post_init__(self) -> None:
        """Refuse a mirror that is not on the web, such as file:."""
        if self.mirror is not None and urlsplit(self.mirror).scheme not in ("http", "https"):
            raise ConfigError(f'the mirror "{self.mirror}" must begin with http:// or https://')

    def urls(self, item: Download) -> tuple[str, ...]:
        """List the addresses to try for a file."""
        return item.urls if self.mirror is None else (f"{self.mirror.rstrip('/')}/{item.name}",)


class _HopelessError(Exception):
    """What another attempt at the same address will not change."""


class _CutError(Exception):
    """A transfer that ended too early."""


def may_follow(old: str, new: str) -> bool:
    """Tell whether a redirect stays on the web and does not give up a safe line."""
    schemes = (urlsplit(old).scheme, urlsplit(new).scheme)
    return schemes in (("http", "http"), ("http", "https"), ("https", "https"))


class _Redirects(HTTPRedirectHandler):
    """Follows redirects on the web, but never from a safe line to an open one."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> Request | None:
        """Return the request for the new address."""
        if not may_follow(req.full_url, newurl):
            raise _HopelessError(f"it redirects to {newurl}, which is not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def download(item: Download, folder: Path, *, patience: Patience, seen: Seen | None = None) -> Path:
    """Fetch a file unless it is there already; its checksum is right when this returns.

    What came before a failure stays beside it as .part, and the next call goes on from there.

    Raises:
        DataError: it could not be had from any address; the message names each with its reason.
    """
    target, part = folder / item.name, folder / f"{item.name}.part"
    folder.mkdir(parents=True, exist_ok=True)
    if target.is_file() and _md5(target) == item.md5:
        return target
    reasons = []
    for url in patience.urls(item):
        reason = _obtain(url, item, part, patience, seen or (lambda _have, _total: None))
        if reason is None:
            os.replace(part, target)
            return target
        reasons.append(f"{url}: {reason}")
    raise DataError(f"{item.name} could not be downloaded ({'; '.join(reasons)})")


def _obtain(url: str, item: Download, part: Path, patience: Patience, seen: Seen) -> str | None:
    """Get all bytes from one address and check them; return what went wrong, if anything did."""
    resumed = part.exists()
    if reason := _persist(url, item, part, patience, seen):
        return reason
    found = _md5(part)
    if found == item.md5:
        return None
    part.unlink()
    if resumed:  # perhaps what was there before is to blame; now nothing is there
        return _obtain(url, item, part, patience, seen)
    return f"wrong bytes: the MD5 should be {item.md5} and is {found}; the file was removed"


def _persist(url: str, item: Download, part: Path, patience: Patience, seen: Seen) -> str | None:
    """Try until all bytes are there, or attempts run out; return what went wrong, if anything."""
    failures = 0
    while True:
        before = _size(part)
        try:
            _transfer(url, item, part, patience.timeout, seen)
            return None
        except (_HopelessError, _CutError, *_LINE) as error:
            if reason := _hopeless(error):
                return reason
            if isinstance(error, HTTPError) and error.code == 416:
                part.unlink(missing_ok=True)  # it is longer than the file on the server
            last = str(error) or type(error).__name__
        failures = 1 if _size(part) - before >= _GAIN else failures + 1
        if failures >= patience.attempts:
            return f"{last}, in {failures} attempts"
        time.sleep(patience.pause * 2 ** (failures - 1))


def _hopeless(error: Exception) -> str | None:
    """Say why there is no point in trying this address again, if there is none."""
    if isinstance(error, HTTPError):
        error.close()
        passing = error.code in _PASSING or error.code == 416
        return None if passing else f"the server answers {error.code} {error.reason}"
    if isinstance(error, URLError) and isinstance(error.reason, socket.gaierror):
        return "the name of the server cannot be looked up; is this machine online?"
    if isinstance(error, URLError) and isinstance(error.reason, ssl.SSLCertVerificationError):
        return f"its certificate is not valid ({error.reason.verify_message})"
    return str(error) if isinstance(error, _HopelessError) else None


def _transfer(url: str, item: Download, part: Path, timeout: float, seen: Seen) -> None:
    """Make one attempt, going on after the bytes that are there."""
    have = _size(part)
    headers = {"User-Agent": "dapperfl", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with build_opener(_Redirects).open(Request(url, headers=headers), timeout=timeout) as response:
        if response.status == 206 and not _goes_on(response, have):
            raise _HopelessError("the server sends another part of the file than was asked for")
        have = have if response.status == 206 else 0
        length = response.headers.get("Content-Length", "")
        total = have + int(length) if length.isdecimal() else None
        limit = 2 * item.size
        if total is not None and total > limit:
            raise _HopelessError(f"it has {total:,} bytes, more than twice the official size")
        with part.open("ab" if have else "wb") as file:
            have = _copy(response, file, have, limit, partial(_tell, seen, total or item.size))
            file.flush()
            os.fsync(file.fileno())
    if total is not None and have < total:
        raise _CutError(f"cut off after {have:,} of {total:,} bytes")


def _tell(seen: Seen, total: int, have: int) -> None:
    seen(have, total)


def _copy(
    response: HTTPResponse, file: IO[bytes], have: int, limit: int, seen: Callable[[int], None]
) -> int:
    """Write what arrives, as long as it can be the file; return how many bytes there are."""
    while chunk := response.read1(_CHUNK):
        have += len(chunk)
        if have > limit:
            file.truncate(0)
            raise _HopelessError(f"it has more than {limit:,} bytes, twice the official size")
        file.write(chunk)
        seen(have)
    return have


def _goes_on(response: HTTPResponse, have: int) -> bool:
    """Tell whether a partial answer begins where the bytes that are there end."""
    found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return found is not None and int(found[1]) == have


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False)).hexdigest()
