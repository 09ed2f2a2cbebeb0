"""Reads a topic with a Python client.

Arguments: ADDRESS TOPIC COUNT GROUP CLIENT. See programs.py.
"""

from __future__ import annotations

import asyncio
import sys


def show(offset: int, key: bytes, value: bytes | None) -> None:
    text = "NULL" if value is None else value.decode()
    print(offset, key.decode(), text, flush=True)  # noqa: T201


def confluent(address: str, topic: str, count: int, group: str) -> None:
    from confluent_kafka import Consumer

    settings = {"bootstrap.servers": address, "group.id": group, "enable.auto.commit": False}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    while count:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            show(message.offset(), message.key(), message.value())
            count -= 1
    consumer.commit(asynchronous=False)
    consumer.close()


def kafka_python(address: str, topic: str, count: int, group: str) -> None:
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=address,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    for record in consumer:
        show(record.offset, record.key, record.value)
        count -= 1
        if not count:
            break
    consumer.commit()
    consumer.close()


def aiokafka(address: str, topic: str, count: int, group: str) -> None:
    from aiokafka import AIOKafkaConsumer

    async def read() -> None:
        async with AIOKafkaConsumer(
            topic,
            bootstrap_servers=address,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        ) as consumer:
            for _ in range(count):
                record = await consumer.getone()
                show(record.offset, record.key, record.value)
            await consumer.commit()

    asyncio.run(read())


if __name__ == "__main__":
    address, topic, count, group, client = sys.argv[1:]
    {"confluent": confluent, "kafka-python": kafka_python, "aiokafka": aiokafka}[client](
        address, topic, int(count), group
    )
