"""Responses to requests that change a cluster: errors that describe the server as read-only.

The codes are those for missing permissions, as for Produce. MirrorMaker and Connect continue after
these errors, as with a broker that does not allow them to create topics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lastwrite.server.config_handlers import TOPIC
from lastwrite.server.errors import Code
from lastwrite.server.handlers import READ_ONLY, Handler, ServerContext
from lastwrite.server.messages import ClientRequest, encode_answer, part

_OF_TOPIC: dict[str, object] = {
    "error_code": Code.TOPIC_AUTHORIZATION_FAILED,
    "error_message": READ_ONLY,
}
_OF_CLUSTER: dict[str, object] = {
    "error_code": Code.CLUSTER_AUTHORIZATION_FAILED,
    "error_message": READ_ONLY,
}


def _create_topics(request: ClientRequest, body: Any) -> bytes:
    return encode_answer(
        request,
        topics=tuple(
            part(
                request,
                "CreatableTopicResult",
                name=each.name,
                topic_id=None,
                configs=None,
                **_OF_TOPIC,
            )
            for each in body.topics
        ),
    )


def _delete_topics(request: ClientRequest, body: Any) -> bytes:
    asked = (
        [(each.name, each.topic_id) for each in body.topics]
        if request.version >= 6
        else [(name, None) for name in body.topic_names]
    )
    return encode_answer(
        request,
        responses=tuple(
            part(request, "DeletableTopicResult", name=name, topic_id=id, **_OF_TOPIC)
            for name, id in asked
        ),
    )


def _delete_records(request: ClientRequest, body: Any) -> bytes:
    return encode_answer(
        request,
        topics=tuple(
            part(
                request,
                "DeleteRecordsTopicResult",
                name=topic.name,
                partitions=tuple(
                    part(
                        request,
                        "DeleteRecordsPartitionResult",
                        partition_index=each.partition_index,
                        low_watermark=-1,
                        **_OF_TOPIC,
                    )
                    for each in topic.partitions
                ),
            )
            for topic in body.topics
        ),
    )


def _create_partitions(request: ClientRequest, body: Any) -> bytes:
    return encode_answer(
        request,
        results=tuple(
            part(request, "CreatePartitionsTopicResult", name=each.name, **_OF_TOPIC)
            for each in body.topics
        ),
    )


def _alter_configs(request: ClientRequest, body: Any) -> bytes:
    return encode_answer(
        request,
        responses=tuple(
            part(
                request,
                "AlterConfigsResourceResponse",
                resource_type=each.resource_type,
                resource_name=each.resource_name,
                **(_OF_TOPIC if each.resource_type == TOPIC else _OF_CLUSTER),
            )
            for each in body.resources
        ),
    )


def _alter_client_quotas(request: ClientRequest, body: Any) -> bytes:
    return encode_answer(
        request,
        entries=tuple(
            part(
                request,
                "EntryData",
                entity=tuple(
                    part(
                        request,
                        "EntityData",
                        entity_type=each.entity_type,
                        entity_name=each.entity_name,
                    )
                    for each in entry.entity
                ),
                **_OF_CLUSTER,
            )
            for entry in body.entries
        ),
    )


def _create_acls(request: ClientRequest, body: Any) -> bytes:
    each = part(request, "AclCreationResult", **_OF_CLUSTER)
    return encode_answer(request, results=(each,) * len(body.creations))


def _delete_acls(request: ClientRequest, body: Any) -> bytes:
    each = part(request, "DeleteAclsFilterResult", matching_acls=(), **_OF_CLUSTER)
    return encode_answer(request, filter_results=(each,) * len(body.filters))


def _elect_leaders(request: ClientRequest, body: Any) -> bytes:
    return encode_answer(
        request,
        error_code=Code.CLUSTER_AUTHORIZATION_FAILED,
        replica_election_results=tuple(
            part(
                request,
                "ReplicaElectionResult",
                topic=topic.topic,
                partition_result=tuple(
                    part(request, "PartitionResult", partition_id=number, **_OF_CLUSTER)
                    for number in topic.partitions
                ),
            )
            for topic in body.topic_partitions or ()
        ),
    )


def _alter_partition_reassignments(request: ClientRequest, body: Any) -> bytes:
    return encode_answer(request, responses=(), **_OF_CLUSTER)


def _update_features(request: ClientRequest, body: Any) -> bytes:
    return encode_answer(request, results=(), **_OF_CLUSTER)


def _alter_user_scram_credentials(request: ClientRequest, body: Any) -> bytes:
    users = dict.fromkeys(each.name for each in (*body.deletions, *body.upsertions))
    return encode_answer(
        request,
        results=tuple(
            part(request, "AlterUserScramCredentialsResult", user=user, **_OF_CLUSTER)
            for user in users
        ),
    )


def _refusal(encode: Callable[[ClientRequest, Any], bytes]) -> Handler:
    def handle(place: ServerContext, request: ClientRequest, body: Any) -> bytes:
        return encode(request, body)

    return handle


REFUSED_WRITES: dict[str, Handler] = {
    name: _refusal(encode)
    for name, encode in {
        "create_topics": _create_topics,
        "delete_topics": _delete_topics,
        "delete_records": _delete_records,
        "create_acls": _create_acls,
        "delete_acls": _delete_acls,
        "alter_configs": _alter_configs,
        "create_partitions": _create_partitions,
        "elect_leaders": _elect_leaders,
        "incremental_alter_configs": _alter_configs,
        "alter_partition_reassignments": _alter_partition_reassignments,
        "alter_client_quotas": _alter_client_quotas,
        "alter_user_scram_credentials": _alter_user_scram_credentials,
        "update_features": _update_features,
    }.items()
}
