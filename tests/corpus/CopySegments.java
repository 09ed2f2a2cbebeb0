package io.aiven.kafka.tieredstorage;

import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;

import io.aiven.kafka.tieredstorage.config.RemoteStorageManagerConfig;

/** Copies segments as the plugin does: LIST NAME=VALUE…; LIST has a line a segment. */
public final class CopySegments {
    public static void main(final String[] args) throws Exception {
        final Map<String, Object> settings = new HashMap<>();
        for (int i = 1; i < args.length; i++) {
            final String[] parts = args[i].split("=", 2);
            settings.put(parts[0], parts[1]);
        }
        final var manager = new KafkaRemoteStorageManager(
            org.slf4j.LoggerFactory.getLogger(CopySegments.class), Time.SYSTEM,
            new RemoteStorageManagerConfig(settings));
        for (final String line : Files.readAllLines(Path.of(args[0]))) {
            // stem topic partition topic-id segment-id start end max-timestamp epoch:offset…
            final String[] said = line.split(" ");
            final Path log = Path.of(said[0] + ".log");
            final Map<Integer, Long> epochs = new TreeMap<>();
            for (int i = 8; i < said.length; i++) {
                final String[] each = said[i].split(":");
                epochs.put(Integer.parseInt(each[0]), Long.parseLong(each[1]));
            }
            final var id = new RemoteLogSegmentId(
                new TopicIdPartition(Uuid.fromString(said[3]),
                    new TopicPartition(said[1], Integer.parseInt(said[2]))),
                Uuid.fromString(said[4]));
            final var metadata = new RemoteLogSegmentMetadata(
                id, Long.parseLong(said[5]), Long.parseLong(said[6]), Long.parseLong(said[7]), 1,
                Files.getLastModifiedTime(log).toMillis(), (int) Files.size(log), epochs);
            final Path aborted = Path.of(said[0] + ".txnindex");
            final var data = new LogSegmentData(
                log, Path.of(said[0] + ".index"), Path.of(said[0] + ".timeindex"),
                Files.exists(aborted) ? Optional.of(aborted) : Optional.empty(),
                Path.of(said[0] + ".snapshot"),
                ByteBuffer.wrap(Files.readAllBytes(Path.of(said[0] + ".leader_epoch_checkpoint"))));
            manager.copyLogSegmentData(metadata, data, (suffix, bytes) -> { });
        }
    }
}
