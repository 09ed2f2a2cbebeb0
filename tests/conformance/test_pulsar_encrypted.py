"""Tests that ``dump`` of encrypted messages gives the key's owner all that decryption needs."""

from __future__ import annotations

import base64

import lastwrite
from lastwrite.cli.dump import as_text
from lastwrite.pulsar.format.entry import Metadata, batch_parts
from lastwrite.reports.table import Row
from tests.support.pulsar.corpus import CORPUS
from tests.support.pulsar.owner import decrypted, unwrapped

(DATA,) = (CORPUS / "encrypted").glob("*-ledger-2")
PEM = (CORPUS / "encrypted" / "private.pem").read_text()


def payload(row: Row) -> bytes:
    """The decrypted payload, computed from the fields of a row."""
    found = row["encryption"]
    (wrapped,) = found["wrapped_keys"]
    assert (wrapped["name"], found["keys"], wrapped["metadata"]) == ("accounts", ["accounts"], {})
    key, iv, stored = map(base64.b64decode, (wrapped["value"], found["param"], row["stored_value"]))
    return decrypted(unwrapped(PEM, key), iv, stored)


def test_owner_of_the_key_can_decrypt_a_message_and_a_batch() -> None:
    alone, batch = lastwrite.dump(str(DATA))
    assert (alone["key"], payload(alone)) == ("iban-1", b"DE02 1203")
    meta = Metadata(
        producer_name="", sequence_id=0, publish_time=0, num_messages_in_batch=batch["batch_size"]
    )
    found = [
        (single.partition_key, value) for _, single, value, _ in batch_parts(meta, payload(batch))
    ]
    assert found == [
        (f"iban-{n}".encode(), f"of a batch, the value {n}".encode()) for n in range(3)
    ]


def test_text_output_contains_the_key_and_the_iv() -> None:
    row = next(iter(lastwrite.dump(str(DATA))))
    (wrapped,) = row["encryption"]["wrapped_keys"]
    told = f"encrypted for accounts (key {wrapped['value']}) with IV {row['encryption']['param']}"
    assert told in as_text(row) and len(base64.b64decode(wrapped["value"])) == 256
