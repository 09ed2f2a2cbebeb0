"""Tests of bucket addresses and settings. ``tests/conformance/test_stores.py`` uses real ones."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

import lastwrite
from lastwrite.config.declaration import SettingsTable
from lastwrite.config.stores import STORE_NAMES, store_settings
from lastwrite.errors import EnvironmentUnfit, InvalidConfig, LogError, RemoteFailed
from lastwrite.kafka.rules.settings import KafkaTopicConfig
from lastwrite.model.stores import StoreSettings
from lastwrite.pulsar.rules.settings import PulsarConfig
from lastwrite.rocketmq.rules.dispatch_settings import DispatchConfig
from lastwrite.rocketmq.rules.settings import RocketmqConfig
from lastwrite.spark.memory import LEAST_SHARE_BYTES, plan_memory
from lastwrite.storage.objects import address
from lastwrite.storage.objects.address import is_address, join, store_at


def test_storage_settings_are_read_beside_other_settings() -> None:
    given = {
        "cleanup.policy": "compact",
        "storage.endpoint": "http://127.0.0.1:9000/",
        "storage.region": "eu-west-1",
        "storage.pathStyle": "false",
        "storage.allowHttp": "true",
        "storage.timeoutMs": "5000",
        "storage.retries": 0,
    }
    found = store_settings(given)
    assert found == StoreSettings("http://127.0.0.1:9000", "eu-west-1", False, True, 5000, 0)
    assert pickle.loads(pickle.dumps(found)) == found
    assert store_settings(None) == store_settings({}) == StoreSettings()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("storage.endpont", "x", "did you mean storage.endpoint?"),
        ("storage.endpoint", "host:9000", "give https://HOST"),
        ("storage.endpoint", "https://me:secret@host", "credentials in the environment"),
        ("storage.timeoutMs", "10", "at least 100"),
        ("storage.retries", "-1", "at least 0"),
        ("storage.pathStyle", "yes", "true or false"),
    ],
)
def test_wrong_setting_is_named(name: str, value: str, said: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        store_settings({name: value})
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("table", [KafkaTopicConfig, RocketmqConfig, DispatchConfig, PulsarConfig])
def test_every_system_accepts_storage_settings(table: type[SettingsTable]) -> None:
    table.from_names(dict.fromkeys(STORE_NAMES, "x"))
    with pytest.raises(InvalidConfig, match=r"storage\.region"):
        table.from_names({"storage.regoin": "x"})


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        ("s3://bucket/a", True),
        ("gs://bucket", True),
        ("az://container/a", True),
        ("/data/s3:/a", False),
        ("data", False),
        ("persistent://public/default/t", False),
        ("s3:/bucket", False),
    ],
)
def test_address_is_distinguished_from_a_path(path: str, is_one: bool) -> None:
    assert is_address(path) is is_one


@pytest.mark.parametrize(
    "name", ["compact", "plan", "inspect", "verify", "explain", "dump", "fetch"]
)
def test_command_uses_its_storage_settings(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address, "_settings", StoreSettings())
    path, config = str(tmp_path / "none"), {"storage.endpoint": "http://127.0.0.1:9"}
    two = {"verify": [path, path], "fetch": [[path]]}.get(name, [path])
    with pytest.raises(LogError):  # the path does not exist
        done = getattr(lastwrite, name)(*two, **_MORE.get(name, {}), config=config)
        next(iter(done))
    assert address.used().endpoint == "http://127.0.0.1:9"


_MORE = {"fetch": {"to": "/nowhere"}, "explain": {"key": b"k"}}


def test_folder_is_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store, key = store_at("some/folder")
    assert (store.address, key) == (str(tmp_path / "some" / "folder"), "")


def test_names_are_joined() -> None:
    assert join("s3://bucket/a/", "b", "c.log") == "s3://bucket/a/b/c.log"
    assert join("s3://bucket", "b") == "s3://bucket/b"
    assert join("/data", "b", "c.log") == "/data/b/c.log"


@pytest.mark.parametrize("name", ["s3://", "s3:///key"])
def test_address_without_a_bucket_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfig, match="contains no bucket"):
        store_at(name)


def test_bucket_has_one_store_per_process_and_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setattr(address, "_settings", StoreSettings())
    first, key = store_at("s3://bucket/a/b")
    assert (first.address, key) == ("s3://bucket", "a/b")
    assert store_at("s3://bucket/c")[0] is first
    assert store_at("s3://other/c")[0] is not first
    settings = StoreSettings("http://127.0.0.1:9")
    told = store_at("s3://bucket/a/b", settings)[0]
    assert told is not first
    address.use(settings)
    assert address.used() == settings
    assert store_at("s3://bucket/a/b")[0] is told


@pytest.mark.parametrize(
    ("bucket", "name", "value", "said"),
    [
        ("az://container", "AZURE_UNUSED", "", "AZURE_STORAGE_ACCOUNT_NAME"),
        (
            "gs://bucket",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "/none",
            "GOOGLE_APPLICATION_CREDENTIALS",
        ),
    ],
)
def test_missing_credentials_are_reported_at_once(
    bucket: str, name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore")
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    monkeypatch.setenv(name, value)
    with pytest.raises(RemoteFailed, match="no credentials were found") as caught:
        store_at(bucket, StoreSettings(retries=2))
    assert said in str(caught.value.remedy)


def test_missing_client_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(EnvironmentUnfit) as caught:
        store_at("s3://bucket/without", StoreSettings(retries=1))
    assert caught.value.remedy == "run pip install 'lastwrite[objects]'"


@pytest.mark.parametrize("share", [LEAST_SHARE_BYTES, 64 << 20, 512 << 20])
def test_read_ahead_stays_within_a_workers_share(share: int) -> None:
    fixed = plan_memory(None, 1)
    limits = type(fixed)(share, share).limits()
    assert 3 * limits.ahead_bytes <= share // 8
    assert limits.ahead_bytes <= 8 << 20
