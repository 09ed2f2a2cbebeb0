"""Tests of encrypted segments.

Changes and missing keys are reported, and no secret is shown.
"""

from __future__ import annotations

import base64
import json
import pickle
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from lastwrite.config.stores import store_settings
from lastwrite.errors import CorruptLog, EnvironmentUnfit, InvalidConfig, LogError
from lastwrite.model.stores import StoreSettings
from lastwrite.model.work import Limits
from lastwrite.storage import encryption
from lastwrite.storage.chunked import decode_manifest
from lastwrite.storage.objects import address
from lastwrite.storage.reading import ChunkedReader, read_small

pytest.importorskip("Crypto")

CHUNKS = Path(__file__).parent.parent / "corpus" / "tiered" / "chunks"
ONE, TWO = CHUNKS / "keys" / "one.pem", CHUNKS / "keys" / "two.pem"


def keys(**files: Path) -> StoreSettings:
    return StoreSettings(encryption_keys=tuple((name, str(path)) for name, path in files.items()))


def manifest_of(kind: str, offset: int, to: Path) -> Path:
    """A copy of one segment's three files."""
    for path in (CHUNKS / kind).rglob(f"{offset:020d}-*"):
        shutil.copy(path, to)
    (found,) = to.glob("*.rsm-manifest")
    return found


def read(path: Path, stores: StoreSettings) -> bytes:
    size = json.loads(path.read_bytes())["chunkIndex"]["originalFileSize"]
    content = np.empty(size, dtype=np.uint8)
    with ChunkedReader(str(path), size, Limits(stores=stores)) as reader:
        reader.read_into(content, 0)
    return content.tobytes()


def change(path: Path, **fields: str) -> None:
    document = json.loads(path.read_bytes())
    document["encryption"] |= fields
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("kind", "offset", "step"),
    [("encrypted", 204, 1), ("encrypted-plain", 204, 1), ("encrypted", 276, 11)],
)
def test_every_changed_byte_is_detected(kind: str, offset: int, step: int, tmp_path: Path) -> None:
    path = manifest_of(kind, offset, tmp_path)
    log = path.with_suffix(".log")
    whole, both = log.read_bytes(), keys(one=ONE, two=TWO)
    assert read(path, both)
    for place in range(0, len(whole), step):
        content = bytearray(whole)
        content[place] ^= 1 << place % 8
        log.write_bytes(content)
        with pytest.raises(CorruptLog, match="the tag does not match") as error:
            read(path, both)
        assert error.value.path == str(path)


def test_missing_key_pair_is_named(tmp_path: Path) -> None:
    path = manifest_of("encrypted", 0, tmp_path)
    with pytest.raises(InvalidConfig, match="key pair 'one'") as error:
        read(path, keys(two=TWO))
    assert error.value.path == str(path)
    assert "storage.encryptionKeys=one:FILE" in str(error.value.remedy)
    assert "encryption.key.pairs.one.private.key.file" in str(error.value.remedy)


def test_file_with_another_key_or_none_is_refused(tmp_path: Path) -> None:
    path = manifest_of("encrypted", 0, tmp_path)
    with pytest.raises(InvalidConfig, match=r"two\.pem cannot decrypt the data key") as error:
        read(path, keys(one=TWO))
    assert error.value.path == str(path)
    other = tmp_path / "key.pem"
    with pytest.raises(InvalidConfig, match="cannot be read: No such file") as error:
        read(path, keys(one=other))
    assert error.value.path == str(other)
    for content in (b"", b"secret words", ONE.read_bytes()[:900], ONE.read_bytes()[40:]):
        other.write_bytes(content)
        with pytest.raises(InvalidConfig, match="does not contain an RSA key in PEM") as error:
            read(path, keys(one=other))
        assert error.value.path == str(other)
        assert "secret" not in str(error.value)
    shutil.copy(ONE, other)  # a corrected key file is read again
    assert read(path, keys(one=other)) == read(path, keys(one=ONE))


def test_changed_manifest_is_refused(tmp_path: Path) -> None:
    path, one = manifest_of("encrypted", 0, tmp_path), keys(one=ONE)
    whole = path.read_bytes()
    change(path, aad=base64.b64encode(bytes(32)).decode())
    with pytest.raises(CorruptLog, match="the tag does not match"):
        read(path, one)
    path.write_bytes(whole)
    wrapped = base64.b64encode(bytes(256)).decode()
    change(path, dataKey=f"one:{wrapped}")
    with pytest.raises(InvalidConfig, match="cannot decrypt the data key"):
        read(path, one)
    for text in ("one", "one:", f":{wrapped}", "one:no base 64", f"one:two:{wrapped}"):
        change(path, dataKey=text)
        with pytest.raises(CorruptLog, match="not of the form ID:BASE64") as error:
            read(path, one)
        assert error.value.path == str(path)
    change(path, aad="no base 64")
    with pytest.raises(CorruptLog, match="not the manifest of a segment"):
        read(path, one)


def test_side_files_are_verified_by_their_tags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address, "_settings", keys(one=ONE))
    path = manifest_of("encrypted", 0, tmp_path)
    place = decode_manifest(path.read_bytes(), str(path)).segment_indexes.producer_snapshot
    indexes = path.with_suffix(".indexes")
    part = f"{indexes}#{place.position}+{place.size}"
    assert read_small(part)
    content = bytearray(indexes.read_bytes())
    content[place.position + place.size - 1] ^= 1
    indexes.write_bytes(content)
    with pytest.raises(CorruptLog, match="the tag does not match") as error:
        read_small(part)
    assert error.value.path == str(indexes)
    indexes.write_bytes(content[: place.position + 20])
    with pytest.raises(CorruptLog, match="less than an IV and a tag"):
        read_small(part)


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = manifest_of("encrypted", 0, tmp_path)
    key = Path(shutil.copy(ONE, tmp_path / "key.pem"))  # a key that is not cached yet
    monkeypatch.setitem(sys.modules, "Crypto.PublicKey", None)
    with pytest.raises(EnvironmentUnfit) as error:
        read(path, keys(one=key))
    assert error.value.remedy == "run pip install 'lastwrite[tiers]'"


def test_key_setting_is_passed_as_files_and_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CHUNKS)
    found = store_settings({"storage.encryptionKeys": f" one:keys/one.pem, two:{TWO}"})
    assert found == keys(one=ONE, two=TWO)
    travelled = pickle.dumps(found)
    assert pickle.loads(travelled) == found
    assert ONE.read_bytes()[100:140] not in travelled
    for text in ("one", "one:", ":file"):
        with pytest.raises(InvalidConfig, match="not ID:FILE") as error:
            store_settings({"storage.encryptionKeys": text})
        assert isinstance(error.value, LogError)


def test_data_key_is_unwrapped_once(tmp_path: Path) -> None:
    path = manifest_of("encrypted", 0, tmp_path)
    for _ in range(2):
        read(path, keys(one=ONE))
    before = encryption._data_key.cache_info().misses
    read(path, keys(one=ONE))
    assert encryption._data_key.cache_info().misses == before
