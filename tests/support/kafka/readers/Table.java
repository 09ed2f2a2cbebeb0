import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;

/** A Kafka Streams table of a topic, printed each time that the key "end" gets the next number, 1 and 2. Arguments: ADDRESS TOPIC KIND FOLDER. */
public class Table {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("application.id", "streams-" + args[2]);
        settings.put("state.dir", args[3]);
        settings.put("topology.optimization", "all"); // the topic is the table's changelog, so that Streams creates no topic
        settings.put("replication.factor", "1");
        var builder = new StreamsBuilder();
        var read = Consumed.with(Serdes.String(), Serdes.String());
        Materialized<String, String, KeyValueStore<Bytes, byte[]>> kept = Materialized.as("table");
        if (args[2].equals("global")) {
            builder.globalTable(args[1], read, kept);
        } else {
            builder.table(args[1], read, kept);
        }
        try (var streams = new KafkaStreams(builder.build(settings), settings)) {
            streams.start();
            while (streams.state() != KafkaStreams.State.RUNNING) {
                Thread.sleep(50);
            }
            var store = streams.store(StoreQueryParameters.fromNameAndType("table", QueryableStoreTypes.<String, String>keyValueStore()));
            for (String number : new String[] {"1", "2"}) {
                while (!number.equals(store.get("end"))) {
                    Thread.sleep(50);
                }
                try (var all = store.all()) {
                    all.forEachRemaining(each -> System.out.println(each.key + " " + each.value));
                }
                System.out.println("whole");
            }
        }
    }
}
