"""How records become rows of a table: keys and values decoded, deletes marked."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from lastwrite.decoding.options import ASIDE, NULL, DecodingConfig
from lastwrite.errors import BadValue
from lastwrite.model.log import TopicPartition
from lastwrite.rows.arrow import HEADERS
from lastwrite.rows.decoded import ERROR, REMEDY, DecodedRows, decoder_of, put_aside
from lastwrite.tables.columns import KEY, NAMES, RAW_KEY, identity_of

IS_DELETE = "_is_delete"  # of a change; no column of a table
_READ = ("key", "value", "partition", "offset", "timestamp")


class Rows:
    """Makes changes of a table of last writes and deletes.

    Attributes:
        read_columns: what is to be read of records for it.
        schema: of the table.
        identity: the column whose bytes tell keys apart.
        decodes: whether keys or values may be bad.

    Raises:
        InvalidConfig, RemoteFailed: as ``DecodedRows``.
    """

    def __init__(self, config: DecodingConfig, topic: str, has_headers: bool = False) -> None:
        self._config, self._topic = config, topic
        # A bad value that goes aside takes its key's row with it: the older value is not current.
        on_bad = NULL if config.on_bad == ASIDE else config.on_bad
        values = replace(config, key_format="raw", key_schema="", on_bad=on_bad, bad_to="")
        self._values = DecodedRows(values, [*_READ, *[HEADERS] * has_headers], topic)
        self._keys = None
        if config.key_format != "raw":
            self._keys = decoder_of(config, "key", topic, ())
        self.read_columns = self._values.raw_columns
        self.decodes = (config.key_format, config.value_format) != ("raw", "raw")
        fields = [
            each.with_name(NAMES.get(each.name, each.name)) for each in self._values.arrow_schema
        ]
        if config.on_bad == ASIDE:
            fields = [each for each in fields if each.name != ERROR]
        if self._keys is not None:
            fields[0] = pa.field(KEY, self._keys.type)
            if config.key_format != "utf8":
                fields.append(pa.field(RAW_KEY, pa.binary()))
        self.schema = pa.schema(fields)
        self.identity = identity_of(self.schema)
        self.change_schema = self.schema.append(pa.field(IS_DELETE, pa.bool_()))

    def changes(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Last writes and deletes, which have ``read_columns``, as rows of ``change_schema``; of a
        delete all is null but the key and its place. Their order is another.

        Raises:
            BadValue: a key is bad, or a value is and ``on_bad`` is ``fail``.
        """
        writes, deletes = batch, []
        if batch.column("value").null_count:
            is_delete = batch.column("value").is_null()
            writes, deletes = batch.filter(pc.invert(is_delete)), [batch.filter(is_delete)]
        made = []
        for rows in self._values.of([writes]):
            if self._config.on_bad == ASIDE and ERROR in rows.schema.names:
                why = rows.column(ERROR)
                bad = {row: why[row].as_py() for row in range(len(rows)) if why[row].is_valid}
                if bad:
                    put_aside(writes, bad, self._config.bad_to)
                    rows = rows.filter(why.is_null())
                    deletes.append(writes.filter(why.is_valid()))
            made.append(self._made(rows, is_delete=False))
        made += [self._made(each.select(["key", *_READ[2:]]), is_delete=True) for each in deletes]
        return made[0] if len(made) == 1 else pa.concat_batches(made)

    def _made(self, rows: pa.RecordBatch, *, is_delete: bool) -> pa.RecordBatch:
        given = {NAMES.get(name, name): rows.column(name) for name in rows.schema.names}
        given[RAW_KEY] = given[KEY]
        if self._keys is not None:
            given[KEY], bad = self._keys.decode(given[RAW_KEY])
            if bad:
                row = min(bad)
                name = TopicPartition(self._topic, rows.column("partition")[row].as_py())
                offset = rows.column("offset")[row]
                raise BadValue(f"offset {offset}, key: {bad[row]}", path=str(name), remedy=REMEDY)
        arrays = [
            given[each.name] if each.name in given else pa.nulls(len(rows), each.type)
            for each in self.schema
        ]
        arrays.append(pa.repeat(is_delete, len(rows)))
        return pa.RecordBatch.from_arrays(arrays, schema=self.change_schema)
