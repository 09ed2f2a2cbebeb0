"""Convert records to rows of a table: decode keys and values, and mark deletes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lastwrite.decoding.options import ASIDE, NULL, DecodingConfig
from lastwrite.errors import BadValue
from lastwrite.model.log import TopicPartition
from lastwrite.rows.arrow import HEADERS
from lastwrite.rows.decoded import ERROR, REMEDY, DecodedRows, decoder_of, write_bad_records
from lastwrite.tables.columns import KEY, NAMES, RAW_KEY, identity_of

IS_DELETE = "_is_delete"  # column of changes; tables do not have it
_READ = ("key", "value", "partition", "offset", "timestamp")
_NO_COLUMN = (
    "rebuild the table with --anew (anew=True), which adds a column _key with the keys as "
    "bytes; or give on_bad=aside, which writes such records to a folder"
)


class Rows:
    """Converts the last writes and deletes of a topic to changes of a table.

    Attributes:
        read_columns: the columns of records that ``changes`` needs.
        schema: the table's schema.
        identity: the column whose bytes identify a key.
        decodes: whether keys or values may be bad.
        aliases, unions: Avro aliases and unions by column path; see ``ColumnDecoder``.

    Args:
        has_raw_key: whether a table with text keys also has a column of their bytes. By default
            it has this column only if ``on_bad`` is ``null``, because keys that are not text
            then have rows.

    Raises:
        InvalidConfig, RemoteFailed: as ``DecodedRows``.
    """

    def __init__(
        self,
        config: DecodingConfig,
        topic: str,
        has_headers: bool = False,
        has_raw_key: bool | None = None,
    ) -> None:
        self._config, self._topic, self._has_headers = config, topic, has_headers
        # A bad value that is put aside removes the row of its key, because the row's older value
        # is not current any more. The decoder must therefore return it as null.
        on_bad = NULL if config.on_bad == ASIDE else config.on_bad
        values = replace(config, key_format="raw", key_schema="", on_bad=on_bad, bad_to="")
        self._values = DecodedRows(values, [*_READ, *[HEADERS] * has_headers], topic)
        self._keys = None
        if config.key_format != "raw":
            self._keys = decoder_of(config, "key", topic, ())
        self.read_columns = self._values.raw_columns
        if self._keys is not None and "topic" not in self.read_columns:
            self.read_columns += ("topic",)  # names the file for bad records
        decoders = [*self._values.decoders.values(), *([self._keys] if self._keys else ())]
        self.aliases = {path: names for each in decoders for path, names in each.aliases.items()}
        self.unions = {path: names for each in decoders for path, names in each.unions.items()}
        self.decodes = (config.key_format, config.value_format) != ("raw", "raw")
        fields = [
            each.with_name(NAMES.get(each.name, each.name))
            for each in self._values.arrow_schema
            if each.name != ERROR
        ]
        if config.on_bad == NULL and self.decodes:
            fields.append(pa.field(ERROR, pa.string()))
        if self._keys is not None:
            fields[0] = pa.field(KEY, self._keys.type)
            # If all keys are text, the table needs no column of their bytes.
            if has_raw_key is None or config.key_format != "utf8":
                has_raw_key = config.key_format != "utf8" or config.on_bad == NULL
            if has_raw_key:
                fields.append(pa.field(RAW_KEY, pa.binary()))
        self.schema = pa.schema(fields)
        self.identity = identity_of(self.schema)
        self.change_schema = self.schema.append(pa.field(IS_DELETE, pa.bool_()))

    def fit_to(self, schema: pa.Schema) -> Rows:
        """A converter that identifies keys by the same column as the table with this ``schema``."""
        has_raw_key = RAW_KEY in schema.names
        if self._config.key_format != "utf8" or has_raw_key == (RAW_KEY in self.schema.names):
            return self
        return Rows(self._config, self._topic, self._has_headers, has_raw_key)

    def changes(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert last writes and deletes from ``read_columns`` to ``change_schema``.

        A delete has a key, partition, offset and timestamp; its other columns are null. The order
        of records may change. A bad key is no error in a delete, which needs only the key's bytes.

        Raises:
            BadValue: a key or value of a write is bad, and ``on_bad`` is ``fail``; or a key is bad,
                and the table has no column for its bytes.
        """
        writes, deletes = batch, []
        if batch.column("value").null_count:
            is_delete = batch.column("value").is_null()
            writes, deletes = batch.filter(pc.invert(is_delete)), [batch.filter(is_delete)]
        made = []
        for rows in self._values.of([writes]):
            bad = self._bad_of(rows)
            given = {NAMES.get(name, name): rows.column(name) for name in rows.schema.names}
            if bad and self._config.on_bad == ASIDE:
                write_bad_records(writes, bad, self._config.bad_to)
                stays = pa.array([row not in bad for row in range(len(rows))])
                given = {name: column.filter(stays) for name, column in given.items()}
                deletes.append(writes.filter(pc.invert(stays)))
            elif self._config.on_bad == NULL:
                given[ERROR] = pa.array([bad.get(row) for row in range(len(rows))], pa.string())
            made.append(self._make_batch(given, is_delete=False))
        for each in deletes:
            names = ("key", *_READ[2:])
            given = {NAMES.get(name, name): each.column(name) for name in names}
            made.append(self._make_batch(given, is_delete=True))
        return made[0] if len(made) == 1 else pa.concat_batches(made)

    def _bad_of(self, rows: pa.RecordBatch) -> dict[int, str]:
        """The reasons why keys or values cannot be decoded, by row."""
        bad: dict[int, str] = {}
        if ERROR in rows.schema.names:
            whys = rows.column(ERROR)
            bad = {int(row): whys[row].as_py() for row in np.flatnonzero(whys.is_valid())}
        if self._keys is None:
            return bad
        _, bad_keys = self._keys.decode(rows.column("key"))
        is_representable = self._config.on_bad == ASIDE or (
            self._config.on_bad == NULL and RAW_KEY in self.schema.names
        )
        for row, why in bad_keys.items():
            if not is_representable:
                name = TopicPartition(self._topic, rows.column("partition")[row].as_py())
                offset = rows.column("offset")[row]
                remedy = _NO_COLUMN if self._config.on_bad == NULL else REMEDY
                raise BadValue(f"offset {offset}, key: {why}", path=str(name), remedy=remedy)
            bad[row] = f"key: {why}; {bad[row]}" if row in bad else f"key: {why}"
        return bad

    def _make_batch(self, given: dict[str, pa.Array], *, is_delete: bool) -> pa.RecordBatch:
        if self._keys is not None:
            keys, bad = self._keys.decode(given[KEY])
            given = {**given, KEY: keys, RAW_KEY: given[KEY]}
            if bad and self.identity == KEY:  # the table has no row with a bad key
                stays = pa.array([row not in bad for row in range(len(keys))])
                given = {name: column.filter(stays) for name, column in given.items()}
        rows = len(given[KEY])
        arrays = [
            given[each.name] if each.name in given else pa.nulls(rows, each.type)
            for each in self.schema
        ]
        arrays.append(pa.repeat(is_delete, rows))
        return pa.RecordBatch.from_arrays(arrays, schema=self.change_schema)
