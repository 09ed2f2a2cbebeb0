import com.fasterxml.jackson.databind.JsonNode;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.Type;
import java.nio.ByteBuffer;
import java.util.AbstractCollection;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.MessageUtil;

/**
 * Records of Kafka's own topics, as Kafka's generated classes write them: every type in every version, its
 * fields filled at random, beside the same record in the words of Kafka's own JSON converters. One line each:
 *
 *     java -cp "$KAFKA/lib/*" tests/corpus/CoordinatorRecords.java | gzip -9n > coordinator-records.jsonl.gz
 */
public class CoordinatorRecords {
    private static final Random RANDOM = new Random(41);
    private static final List<String> NOT_FILLED = List.of("_unknownTaggedFields", "prev", "next");
    private static final String[] WORDS = {"", "a", "orders", "größe", "member-1", "x".repeat(200)};

    public static void main(String[] arguments) {
        String generated = "org.apache.kafka.coordinator.%s.generated.%s";
        for (var kind : org.apache.kafka.coordinator.group.generated.CoordinatorRecordType.values())
            record("__consumer_offsets", String.format(generated, "group", "CoordinatorRecordJsonConverters"), kind.id(),
                kind.newRecordKey(), kind.newRecordValue());
        for (var kind : org.apache.kafka.coordinator.transaction.generated.CoordinatorRecordType.values())
            record("__transaction_state", String.format(generated, "transaction", "CoordinatorRecordJsonConverters"),
                kind.id(), kind.newRecordKey(), kind.newRecordValue());
        for (var kind : org.apache.kafka.coordinator.share.generated.CoordinatorRecordType.values())
            record("__share_group_state", String.format(generated, "share", "CoordinatorRecordJsonConverters"), kind.id(),
                kind.newRecordKey(), kind.newRecordValue());
        for (var kind : org.apache.kafka.common.metadata.MetadataRecordType.values())
            metadata(kind.id(), kind.newMetadataRecord());
    }

    /** A record of KRaft's own log; it has no key. */
    private static void metadata(short id, ApiMessage record) {
        for (short version = record.lowestSupportedVersion(); version <= record.highestSupportedVersion(); version++)
            for (int n = 0; n < 6; n++) {
                filled(record, version, version, n / 5.0);
                var serde = org.apache.kafka.metadata.MetadataRecordSerde.INSTANCE;
                var framed = new org.apache.kafka.server.common.ApiMessageAndVersion(record, version);
                var cache = new org.apache.kafka.common.protocol.ObjectSerializationCache();
                ByteBuffer bytes = ByteBuffer.allocate(serde.recordSize(framed, cache));
                serde.write(framed, cache, new org.apache.kafka.common.protocol.ByteBufferAccessor(bytes));
                System.out.printf("{\"topic\": \"__cluster_metadata\", \"type\": %d, \"name\": \"%s\", \"version\": %d, "
                    + "\"key\": null, \"value\": \"%s\", \"key_fields\": null, \"value_fields\": %s}%n", id,
                    record.getClass().getSimpleName(), version, hex(bytes.flip()),
                    org.apache.kafka.common.metadata.MetadataJsonConverters.writeJson(record, version));
            }
    }

    private static String hex(ByteBuffer bytes) {
        StringBuilder hex = new StringBuilder();
        while (bytes.hasRemaining()) hex.append(String.format("%02x", bytes.get()));
        return hex.toString();
    }

    private static void record(String topic, String converters, short id, ApiMessage key, ApiMessage value) {
        for (short version = value.lowestSupportedVersion(); version <= value.highestSupportedVersion(); version++)
            for (int n = 0; n < 6; n++) {
                String keyHex = filled(key, (short) 0, id, 1);
                String keyJson = json(converters, "writeRecordKeyAsJson", key, null);
                // The first has defaults only, the later ones ever more fields.
                String valueHex = filled(value, version, version, n / 5.0);
                String valueJson = json(converters, "writeRecordValueAsJson", value, version);
                System.out.printf("{\"topic\": \"%s\", \"type\": %d, \"name\": \"%s\", \"version\": %d, \"key\": \"%s\", "
                    + "\"value\": \"%s\", \"key_fields\": %s, \"value_fields\": %s}%n", topic, id,
                    value.getClass().getSimpleName(), version, keyHex, valueHex, keyJson, valueJson);
            }
    }

    /** Fill {@code message} until Kafka agrees to write it in that version: not all fields go with all of them. */
    private static String filled(ApiMessage message, short version, short prefix, double share) {
        for (int attempt = 0; ; attempt++)
            try {
                fill(message, share * Math.pow(0.99, attempt));
                ByteBuffer bytes = MessageUtil.toVersionPrefixedByteBuffer(version, message);
                bytes.putShort(0, prefix);
                return hex(bytes);
            } catch (RuntimeException refused) {
                if (attempt == 5000) throw refused;
            }
    }

    private static void fill(Object target, double share) {
        try {
            Object fresh = target.getClass().getDeclaredConstructor().newInstance();
            for (Field field : target.getClass().getDeclaredFields()) {
                if (Modifier.isStatic(field.getModifiers()) || NOT_FILLED.contains(field.getName())) continue;
                field.setAccessible(true);
                field.set(target, RANDOM.nextDouble() < share ? random(field.getGenericType(), share) : field.get(fresh));
                if (field.getName().equals("port")) field.setInt(target, field.getInt(target) & 0xffff);
            }
        } catch (ReflectiveOperationException broken) {
            throw new IllegalStateException(broken);
        }
    }

    private static Object random(Type type, double share) throws ReflectiveOperationException {
        if (type instanceof ParameterizedType list) {
            if (RANDOM.nextInt(12) == 0) return null;
            List<Object> found = new ArrayList<>();
            for (int n = RANDOM.nextInt(3); n > 0; n--) found.add(random(list.getActualTypeArguments()[0], share));
            return found;
        }
        long any = RANDOM.nextInt(3) == 0 ? RANDOM.nextLong() : RANDOM.nextInt(1000);
        if (type == byte.class || type == Byte.class) return (byte) any;
        if (type == short.class || type == Short.class) return (short) any;
        if (type == int.class || type == Integer.class) return (int) any;
        if (type == long.class || type == Long.class) return any;
        if (type == Uuid.class) return Uuid.randomUuid();
        if (type == boolean.class) return RANDOM.nextBoolean();
        if (type == double.class) return RANDOM.nextInt(1000) / 8.0;
        if (type instanceof Class<?> set && AbstractCollection.class.isAssignableFrom(set)) {
            Type of = ((ParameterizedType) set.getGenericSuperclass()).getActualTypeArguments()[0];
            @SuppressWarnings("unchecked")
            var found = (AbstractCollection<Object>) set.getDeclaredConstructor().newInstance();
            for (int n = RANDOM.nextInt(3); n > 0; n--) {
                Object made = ((Class<?>) of).getDeclaredConstructor().newInstance();
                fill(made, share);
                found.add(made);
            }
            return found;
        }
        if (type == String.class) return RANDOM.nextInt(8) == 0 ? null : WORDS[RANDOM.nextInt(WORDS.length)];
        if (type == byte[].class) {
            byte[] bytes = new byte[RANDOM.nextInt(40)];
            RANDOM.nextBytes(bytes);
            return bytes;
        }
        if (RANDOM.nextInt(8) == 0) return null;
        Object made = ((Class<?>) type).getDeclaredConstructor().newInstance();
        fill(made, share);
        return made;
    }

    private static String json(String converters, String method, ApiMessage message, Short version) {
        try {
            Class<?> kind = Class.forName(converters);
            return (version == null ? (JsonNode) kind.getMethod(method, ApiMessage.class).invoke(null, message)
                : (JsonNode) kind.getMethod(method, ApiMessage.class, short.class).invoke(null, message, version)).toString();
        } catch (ReflectiveOperationException broken) {
            throw new IllegalStateException(broken);
        }
    }
}
