import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.DataOutputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.security.KeyPair;
import java.security.KeyPairGenerator;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.meta.LedgerMetadataSerDe;
import org.apache.pulsar.client.admin.LongRunningProcessStatus;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.ConsumerCryptoFailureAction;
import org.apache.pulsar.client.api.CryptoKeyReader;
import org.apache.pulsar.client.api.EncryptionKeyInfo;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SizeUnit;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.client.impl.BatchMessageIdImpl;
import org.apache.pulsar.client.impl.ConsumerImpl;
import org.apache.pulsar.client.impl.MessageIdImpl;
import org.apache.pulsar.client.impl.PulsarClientImpl;
import org.apache.pulsar.client.impl.TopicMessageIdImpl;
import org.apache.pulsar.client.impl.conf.ConsumerConfigurationData;
import org.apache.pulsar.common.api.proto.CommandAck.AckType;
import org.apache.pulsar.common.naming.TopicName;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.ZooKeeper;

/**
 * Runs Pulsar's own Java clients for tests. Each request and each answer is a line of JSON; see driver.py.
 *
 * <p>Arguments: service URL, admin URL, ZooKeeper's address, whether transactions are enabled.
 */
public final class Driver {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String COMPACTION = "__compaction";
    private static final String PROPERTY = "CompactedTopicLedger";
    private static final long PATIENCE = 700_000_000;  // ns to wait for the begin of a compaction
    private static final int READ = 200;             // entries to read at once from an open ledger
    private static final long READ_BYTES = 8 << 20;  // approximate bytes to read at once from a closed ledger

    private final PulsarAdmin admin;
    private final PulsarClient client;
    private final BookKeeper bookkeeper;
    private final ZooKeeper zookeeper;
    private final Map<String, Map<String, Producer<byte[]>>> producers = new HashMap<>();
    private final Map<String, Transaction> transactions = new HashMap<>();
    private final CryptoKeyReader keys = keys();

    private Driver(String[] args) throws Exception {
        admin = PulsarAdmin.builder().serviceHttpUrl(args[1]).requestTimeout(300, TimeUnit.SECONDS)
            .readTimeout(300, TimeUnit.SECONDS).build();
        client = PulsarClient.builder().serviceUrl(args[0]).statsInterval(0, TimeUnit.SECONDS)
            .enableTransaction(Boolean.parseBoolean(args[3])).memoryLimit(0, SizeUnit.BYTES).build();
        bookkeeper = BookKeeper.forConfig(new ClientConfiguration()
            .setMetadataServiceUri("zk://" + args[2] + "/ledgers").setZkTimeout(30000)).build();
        zookeeper = new ZooKeeper(args[2], 30000, event -> { });
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        Driver driver = new Driver(args);
        out.println("{\"ready\":true}");
        out.flush();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode answer;
            try {
                answer = driver.answer(JSON.readTree(line));
            } catch (Throwable error) {
                error.printStackTrace();
                answer = JSON.createObjectNode().put("error", error.toString());
            }
            out.println(answer);
            out.flush();
        }
        Runtime.getRuntime().halt(0);                 // without shutting the clients down, which takes seconds
    }

    private JsonNode answer(JsonNode asked) throws Exception {
        String topic = asked.path("topic").asText();
        ObjectNode none = JSON.createObjectNode();
        switch (asked.get("do").asText()) {
            case "create":
                int partitions = asked.path("partitions").asInt(0);
                if (partitions == 0) {
                    admin.topics().createNonPartitionedTopic(topic);
                } else {
                    admin.topics().createPartitionedTopic(topic, partitions);
                }
                return none;
            case "delete":
                close(topic);
                admin.topics().delete(topic, true);
                return none;
            case "unload":
                close(topic);
                admin.topics().unload(topic);
                return none;
            case "close":
                close(topic);
                return none;
            case "unsubscribe":
                admin.topics().deleteSubscription(topic, asked.get("subscription").asText(), true);
                return none;
            case "send":
                return send(topic, asked.get("lines"));
            case "load":
                return load(topic, asked);
            case "end":
                end(asked.get("transaction").asText(), asked.get("commit").asBoolean());
                return none;
            case "compact":
                return compact(topic);
            case "horizon":
                return horizon(topic);
            case "ledgers":
                return ledgers(topic);
            case "dump":
                return dump(asked.get("ledger").asLong(), asked.path("from").asLong(0), asked.path("last").asLong(-1));
            case "export":
                return export(asked.get("ledger").asLong(), asked.path("last").asLong(-1), asked.get("file").asText());
            case "read":
                return read(topic, asked.path("compacted").asBoolean(false), asked.path("from").asText(""),
                    asked.path("patience").asInt(10000));
            case "last-id":
                return JSON.createObjectNode().put("id", admin.topics().getLastMessageId(topic).toString());
            case "attach":
                return attach(topic, asked.get("records"), asked.get("horizon"));
            default:
                throw new IllegalArgumentException("unknown request " + asked);
        }
    }

    // ---- sending

    private Producer<byte[]> producer(String topic, JsonNode line) throws Exception {
        boolean batch = line.path("batch").asBoolean(false);
        boolean encrypt = line.path("encrypt").asBoolean(false);
        int chunk = line.path("chunk").asInt(0);
        CompressionType codec = CompressionType.valueOf(line.path("codec").asText("NONE"));
        Map<String, Producer<byte[]>> open = producers.computeIfAbsent(topic, name -> new HashMap<>());
        String kind = codec + " " + batch + " " + encrypt + " " + chunk;
        Producer<byte[]> found = open.get(kind);
        if (found == null) {
            ProducerBuilder<byte[]> builder = client.newProducer().topic(topic).compressionType(codec)
                .compressionMinMsgBodySize(line.path("compressFrom").asInt(0)).sendTimeout(0, TimeUnit.SECONDS).maxPendingMessages(50000).blockIfQueueFull(true)
                .enableBatching(batch);
            if (batch) {
                builder.batchingMaxMessages(line.path("most").asInt(100000)).batchingMaxPublishDelay(1, TimeUnit.HOURS)
                    .batchingMaxBytes(4 << 20);
            }
            if (chunk > 0) {
                builder.enableChunking(true).chunkMaxMessageSize(chunk);
            }
            if (encrypt) {
                builder.cryptoKeyReader(keys).addEncryptionKey("tests");
            }
            found = builder.create();
            open.put(kind, found);
        }
        return found;
    }

    private void close(String topic) throws Exception {
        Map<String, Producer<byte[]>> open = producers.remove(topic);
        if (open != null) {
            for (Producer<byte[]> producer : open.values()) {
                producer.close();
            }
        }
    }

    /** Sends the lines entry by entry. Returns the ids in order. */
    private JsonNode send(String topic, JsonNode lines) throws Exception {
        ArrayNode ids = JSON.createArrayNode();
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        Producer<byte[]> last = null;
        for (JsonNode line : lines) {
            if (line.has("commit") || line.has("abort")) {
                wait(sent, last, ids);
                end(line.path("commit").asText(line.path("abort").asText()), line.has("commit"));
                continue;
            }
            Producer<byte[]> producer = producer(topic, line);
            boolean batch = line.path("batch").asBoolean(false);
            if (producer != last || batch) {           // otherwise the order of two producers' entries is not certain
                wait(sent, last, ids);
            }
            last = producer;
            Transaction transaction = line.has("txn") ? transaction(line.get("txn").asText()) : null;
            for (JsonNode message : line.get("messages")) {
                sent.add(build(producer, transaction, message).sendAsync());
            }
            if (batch) {
                if (transaction != null) {
                    Thread.sleep(200);                 // they join the batch after the coordinator's answer
                }
                wait(sent, last, ids);
            }
        }
        wait(sent, last, ids);
        return JSON.createObjectNode().set("ids", ids);
    }

    private void wait(List<CompletableFuture<MessageId>> sent, Producer<byte[]> producer, ArrayNode ids)
            throws Exception {
        if (producer != null) {
            producer.flush();
        }
        for (CompletableFuture<MessageId> one : sent) {
            ids.add(one.get().toString());
        }
        sent.clear();
    }

    private static TypedMessageBuilder<byte[]> build(Producer<byte[]> producer, Transaction transaction, JsonNode of) {
        TypedMessageBuilder<byte[]> made = transaction == null ? producer.newMessage() : producer.newMessage(transaction);
        if (of.has("key")) {
            made.key(of.get("key").asText());
        }
        if (of.has("keyBytes")) {
            made.keyBytes(bytes(of.get("keyBytes")));
        }
        made.value(of.path("value").isNull() || !of.has("value") ? null : bytes(of.get("value")));
        if (of.has("eventTime")) {
            made.eventTime(of.get("eventTime").asLong());
        }
        if (of.has("orderingKey")) {
            made.orderingKey(bytes(of.get("orderingKey")));
        }
        if (of.has("deliverAt")) {
            made.deliverAt(of.get("deliverAt").asLong());
        }
        if (of.has("properties")) {
            of.get("properties").fields().forEachRemaining(each -> made.property(each.getKey(), each.getValue().asText()));
        }
        return made;
    }

    private Transaction transaction(String name) throws Exception {
        Transaction found = transactions.get(name);
        if (found == null) {
            found = client.newTransaction().withTransactionTimeout(1, TimeUnit.HOURS).build().get();
            transactions.put(name, found);
        }
        return found;
    }

    private void end(String name, boolean commit) throws Exception {
        Transaction transaction = transactions.remove(name);
        (commit ? transaction.commit() : transaction.abort()).get();
    }

    /** Sends many messages for benchmarks, with random keys and values that compress to about a half. */
    private JsonNode load(String topic, JsonNode asked) throws Exception {
        long count = asked.get("count").asLong();
        int distinct = asked.get("keys").asInt();
        int size = asked.get("size").asInt();
        Random random = new Random(asked.path("seed").asLong(1));
        byte[] pool = new byte[1 << 16];
        for (int i = 0; i < pool.length; i++) {
            pool[i] = (byte) (random.nextBoolean() ? random.nextInt(256) : 'a' + i % 7);
        }
        Producer<byte[]> producer = producer(topic, asked);
        Semaphore window = new Semaphore(20000);
        Throwable[] failed = new Throwable[1];
        for (long i = 0; i < count; i++) {
            int at = random.nextInt(pool.length - size);
            window.acquire();
            producer.newMessage().key(String.format("key-%08d", random.nextInt(distinct)))
                .value(Arrays.copyOfRange(pool, at, at + size)).sendAsync().whenComplete((id, error) -> {
                    if (error != null) {
                        failed[0] = error;
                    }
                    window.release();
                });
        }
        producer.flush();
        if (failed[0] != null) {
            throw new ExecutionException(failed[0]);
        }
        return JSON.createObjectNode().put("messages", count);
    }

    // ---- compaction

    /** Starts the broker's compaction, and waits until the broker serves the new ledger. */
    private ObjectNode compact(String topic) throws Exception {
        JsonNode before = horizon(topic).path("ledger");
        long start = System.nanoTime();
        // The compaction may begin after the answer, and report success before its ledger. It never begins without new
        // entries, or while a topic that was just loaded recovers its transactions. The request is therefore repeated.
        LongRunningProcessStatus status = null;
        ObjectNode after = null;
        for (int asked = 0; asked < 3 && (after == null || after.path("ledger").equals(before)); asked++) {
            admin.topics().triggerCompaction(topic);
            long since = System.nanoTime();
            do {
                Thread.sleep(5);
                status = admin.topics().compactionStatus(topic);
                after = horizon(topic);
                if (status.status == LongRunningProcessStatus.Status.RUNNING) {
                    since = System.nanoTime();
                }
            } while (status.status == LongRunningProcessStatus.Status.RUNNING
                || status.status != LongRunningProcessStatus.Status.ERROR && after.path("ledger").equals(before)
                && System.nanoTime() - since < PATIENCE);
        }
        boolean did = !after.path("ledger").equals(before);
        double seconds = (System.nanoTime() - start) / 1e9;
        var told = admin.topics().getStats(topic).getCompaction();
        ObjectNode out = after.deepCopy();
        out.put("status", status.status.name()).put("did", did).put("seconds", seconds)
            .put("removed", told.getLastCompactionRemovedEventCount())
            .put("millis", told.getLastCompactionDurationTimeInMills());
        if (status.lastError != null && !status.lastError.isEmpty()) {
            out.put("lastError", status.lastError);
        }
        return out;
    }

    /** The horizon and the compacted ledger by the broker. {} if the topic was never compacted. */
    private ObjectNode horizon(String topic) throws Exception {
        ObjectNode out = JSON.createObjectNode();
        var stats = admin.topics().getInternalStats(topic);
        var cursor = stats.cursors.get(COMPACTION);
        if (cursor != null && cursor.properties != null && cursor.properties.containsKey(PROPERTY)) {
            String[] position = cursor.markDeletePosition.split(":");
            out.putArray("horizon").add(Long.parseLong(position[0])).add(Long.parseLong(position[1]));
            out.put("ledger", cursor.properties.get(PROPERTY));
            out.put("entries", stats.compactedLedger.entries).put("size", stats.compactedLedger.size);
        }
        return out;
    }

    /** The topic's ledgers: their metadata in the metadata store, and the last entry that the broker knows of each. */
    private ObjectNode ledgers(String topic) throws Exception {
        String path = "/managed-ledgers/" + TopicName.get(topic).getPersistenceNamingEncoding();
        ObjectNode out = JSON.createObjectNode();
        var stats = admin.topics().getInternalStats(topic);
        out.put("node", node(path)).put("cursor", node(path + "/" + COMPACTION));
        long open = Long.parseLong(stats.lastConfirmedEntry.split(":")[0]);
        long confirmed = Long.parseLong(stats.lastConfirmedEntry.split(":")[1]);
        ArrayNode ledgers = out.putArray("ledgers");
        for (var each : stats.ledgers) {
            boolean last = each == stats.ledgers.get(stats.ledgers.size() - 1);
            long end = last ? (each.ledgerId == open ? confirmed : -1) : each.entries - 1;
            LedgerMetadata metadata =
                bookkeeper.getLedgerManager().readLedgerMetadata(each.ledgerId).get(30, TimeUnit.SECONDS).getValue();
            ledgers.addObject().put("ledger", each.ledgerId).put("last", end)
                .put("metadata", base64(new LedgerMetadataSerDe().serialize(metadata)));
        }
        return out;
    }

    /** The entries of a ledger. For an open ledger, {@code last} is required and ends them. */
    private ObjectNode dump(long id, long from, long last) throws Exception {
        ArrayNode entries = JSON.createArrayNode();
        entries(id, from, last, entry -> entries.add(base64(entry)));
        return JSON.createObjectNode().set("entries", entries);
    }

    /** Writes the entries of a ledger of any size to a file, each after its length as int32. */
    private ObjectNode export(long id, long last, String file) throws Exception {
        try (DataOutputStream out = new DataOutputStream(new BufferedOutputStream(new FileOutputStream(file), 1 << 20))) {
            entries(id, 0, last, entry -> {
                out.writeInt(entry.length);
                out.write(entry);
            });
        }
        return JSON.createObjectNode();
    }

    private interface Sink {
        void take(byte[] entry) throws IOException;
    }

    private void entries(long id, long from, long last, Sink sink) throws Exception {
        LedgerMetadata metadata =
            bookkeeper.getLedgerManager().readLedgerMetadata(id).get(30, TimeUnit.SECONDS).getValue();
        long end = metadata.isClosed() ? metadata.getLastEntryId() : last;
        try (LedgerHandle ledger = bookkeeper.openLedgerNoRecovery(
                id, BookKeeper.DigestType.fromApiDigestType(metadata.getDigestType()), new byte[0])) {
            long step = READ;
            if (metadata.isClosed() && metadata.getLength() > 0) {
                step = Math.max(1, Math.min(2000, READ_BYTES * (end + 1) / metadata.getLength()));
            }
            for (long at = from; at <= end; at += step) {
                long to = Math.min(end, at + step - 1);
                var read = metadata.isClosed() ? ledger.readEntries(at, to) : ledger.readUnconfirmedEntries(at, to);
                while (read.hasMoreElements()) {
                    LedgerEntry entry = read.nextElement();
                    sink.take(entry.getEntry());
                }
            }
        }
    }

    private String node(String path) throws Exception {
        try {
            return base64(zookeeper.getData(path, false, null));
        } catch (KeeperException.NoNodeException none) {
            return null;
        }
    }

    // ---- reading

    /** The messages that a reader gets, from the topic's start or from the id {@code from} on. */
    private ObjectNode read(String topic, boolean compacted, String from, int patience) throws Exception {
        MessageId start = MessageId.earliest;
        if (!from.isEmpty()) {
            String[] place = from.split(":");
            start = new MessageIdImpl(Long.parseLong(place[0]), Long.parseLong(place[1]), -1);
        }
        ObjectNode out = JSON.createObjectNode();
        ArrayNode messages = out.putArray("messages");
        try (Reader<byte[]> reader = client.newReader().topic(topic).startMessageId(start).startMessageIdInclusive()
                .readCompacted(compacted).cryptoFailureAction(ConsumerCryptoFailureAction.CONSUME)
                .cryptoKeyReader(keys).create()) {
            while (reader.hasMessageAvailable()) {
                Message<byte[]> message = reader.readNext(patience, TimeUnit.MILLISECONDS);
                if (message == null) {
                    out.put("timeout", true);           // the last message may be filtered out, and never arrive
                    break;
                }
                messages.add(told(message));
            }
        }
        return out;
    }

    private static ObjectNode told(Message<byte[]> message) {
        ObjectNode out = JSON.createObjectNode();
        MessageId id = message.getMessageId() instanceof TopicMessageIdImpl inner
            ? inner.getInnerMessageId() : message.getMessageId();
        MessageIdImpl plain = (MessageIdImpl) id;
        out.put("ledger", plain.getLedgerId()).put("entry", plain.getEntryId());
        out.put("index", id instanceof BatchMessageIdImpl batch ? batch.getBatchIndex() : -1);
        out.put("key", message.hasKey() ? message.getKey() : null);
        out.put("value", message.getValue() == null ? null : base64(message.getData()));
        ObjectNode properties = out.putObject("properties");
        new TreeMap<>(message.getProperties()).forEach(properties::put);
        out.put("publishTime", message.getPublishTime()).put("eventTime", message.getEventTime());
        out.put("sequenceId", message.getSequenceId()).put("producer", message.getProducerName());
        out.put("orderingKey", message.hasOrderingKey() ? base64(message.getOrderingKey()) : null);
        return out;
    }

    // ---- a compacted ledger of another program

    /** Writes a ledger, and acknowledges it as the topic's compacted ledger. */
    private ObjectNode attach(String topic, JsonNode records, JsonNode horizon) throws Exception {
        MessageIdImpl to = new MessageIdImpl(horizon.get(0).asLong(), horizon.get(1).asLong(), -1);
        Map<String, byte[]> custom = new HashMap<>();
        custom.put("application", utf8("pulsar"));
        custom.put("component", utf8("compacted-ledger"));
        custom.put("pulsar/compactedTopic", utf8(topic));
        custom.put("pulsar/compactedTo", to.toByteArray());
        long id;
        try (LedgerHandle ledger = bookkeeper.createLedger(
                1, 1, 1, BookKeeper.DigestType.CRC32, new byte[0], custom)) {
            List<CompletableFuture<Void>> added = new ArrayList<>();
            for (JsonNode record : records) {
                CompletableFuture<Void> done = new CompletableFuture<>();
                added.add(done);
                ledger.asyncAddEntry(bytes(record), (code, handle, entry, context) -> {
                    if (code == 0) {
                        done.complete(null);
                    } else {
                        done.completeExceptionally(BKException.create(code));
                    }
                }, null);
            }
            for (CompletableFuture<Void> each : added) {
                each.get();
            }
            id = ledger.getId();
        }
        ConsumerConfigurationData<byte[]> settings = new ConsumerConfigurationData<>();
        settings.getTopicNames().add(topic);
        settings.setSubscriptionName(COMPACTION);
        settings.setSubscriptionType(SubscriptionType.Exclusive);
        settings.setReceiverQueueSize(1);
        settings.setReadCompacted(true);
        settings.setSubscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
        CompletableFuture<org.apache.pulsar.client.api.Consumer<byte[]>> ready = new CompletableFuture<>();
        Acknowledger consumer = new Acknowledger((PulsarClientImpl) client, settings, ready);
        ready.get(30, TimeUnit.SECONDS);
        consumer.acknowledge(to, Map.of(PROPERTY, id)).get(30, TimeUnit.SECONDS);
        consumer.close();
        // The acknowledgement returns no error, so the broker's own state is the answer.
        for (int i = 0; horizon(topic).path("ledger").asLong(-1) != id; i++) {
            if (i == 400) {
                throw new IllegalStateException("the broker does not take ledger " + id + ": " + horizon(topic));
            }
            Thread.sleep(5);
        }
        return JSON.createObjectNode().put("ledger", id);
    }

    /** Acknowledges with properties, for which there is no public method. */
    private static final class Acknowledger extends ConsumerImpl<byte[]> {
        Acknowledger(PulsarClientImpl client, ConsumerConfigurationData<byte[]> settings,
                CompletableFuture<org.apache.pulsar.client.api.Consumer<byte[]>> ready) {
            super(client, settings.getSingleTopic(), settings, client.externalExecutorProvider(), -1, false, false,
                ready, MessageId.earliest, 0, Schema.BYTES, null, false);
        }

        CompletableFuture<Void> acknowledge(MessageId id, Map<String, Long> properties) {
            return doAcknowledgeWithTxn(id, AckType.Cumulative, properties, null);
        }
    }

    // ---- helpers

    /** The key pair of this run, for all encrypted messages. */
    private static CryptoKeyReader keys() throws Exception {
        KeyPairGenerator generator = KeyPairGenerator.getInstance("RSA");
        generator.initialize(2048);
        KeyPair pair = generator.generateKeyPair();
        byte[] open = pem("PUBLIC KEY", pair.getPublic().getEncoded());
        byte[] secret = pem("PRIVATE KEY", pair.getPrivate().getEncoded());
        return new CryptoKeyReader() {
            @Override
            public EncryptionKeyInfo getPublicKey(String name, Map<String, String> metadata) {
                return new EncryptionKeyInfo(open, metadata);
            }

            @Override
            public EncryptionKeyInfo getPrivateKey(String name, Map<String, String> metadata) {
                return new EncryptionKeyInfo(secret, metadata);
            }
        };
    }

    private static byte[] pem(String what, byte[] encoded) {
        String body = Base64.getMimeEncoder(64, new byte[] {'\n'}).encodeToString(encoded);
        return utf8("-----BEGIN " + what + "-----\n" + body + "\n-----END " + what + "-----\n");
    }

    private static byte[] bytes(JsonNode base64) {
        return Base64.getDecoder().decode(base64.asText());
    }

    private static String base64(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }

    private static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
