import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.security.*;
import java.util.*;
import org.apache.pulsar.PulsarStandaloneStarter;
import org.apache.pulsar.client.api.*;

/**
 * What the peer's programs leave out, for make_pulsar.py; compiled beside them.
 *
 *   serve DATADIR PORT HTTPPORT BOOKIES          a standalone with several bookies, by DATADIR/standalone.conf
 *   drive DATADIR                                commands of Ptool from standard input, a JSON list a line; besides these
 *                                                ["send", TOPIC, SCRIPT], where "encrypt" is served by a new pair of keys,
 *                                                and ["node", PATH], a node of the metadata store, in Base64
 */
public final class PulsarShapes {
    public static void main(String[] args) throws Exception {
        Path data = Path.of(args[1]).toAbsolutePath();
        if (args[0].equals("serve")) {
            serve(data, Integer.parseInt(args[2]), args[3], args[4]);
            return;
        }
        try (Peer peer = new Peer(data); BufferedReader lines = new BufferedReader(new InputStreamReader(System.in))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                Ptool.print(answer(peer, Peer.JSON.readValue(line, String[].class)));
                Ptool.OUT.flush();
            }
        }
        System.exit(0);
    }

    /** What ends the answer to a command; its other lines are printed already. */
    static ObjectNode answer(Peer peer, String[] words) {
        ObjectNode end = Peer.JSON.createObjectNode();
        try {
            switch (words[0]) {
                case "send" -> new Sender(peer, words[1]).encryption(new Keys()).file(Path.of(words[2]));
                case "node" -> Ptool.print(Peer.JSON.createObjectNode().put("node", Peer.b64(peer.node(words[1]))));
                default -> Ptool.run(peer, words[0], Arrays.copyOfRange(words, 1, words.length));
            }
        } catch (Throwable problem) {
            return end.put("failed", problem.toString());
        }
        return end.put("done", true);
    }

    static void serve(Path data, int port, String http, String bookies) throws Exception {
        new PulsarStandaloneStarter(new String[] {
            "-c", data.resolve("standalone.conf").toString(), "-nfw", "-nss", "-a", "127.0.0.1",
            "--zookeeper-port", "" + (port + 1), "--bookkeeper-port", "" + (port + 2), "--num-bookies", bookies,
            "--zookeeper-dir", data.resolve("zookeeper").toString(),
            "--bookkeeper-dir", data.resolve("bookkeeper").toString()}).start();
        Files.writeString(data.resolve("ready.tmp"), String.format(
            "{\"broker\":\"pulsar://127.0.0.1:%d\",\"admin\":\"http://127.0.0.1:%s\",\"zk\":\"127.0.0.1:%d\",\"pid\":%d}%n",
            port, http, port + 1, ProcessHandle.current().pid()));
        Files.move(data.resolve("ready.tmp"), data.resolve("ready"), StandardCopyOption.ATOMIC_MOVE);
    }

    /** A pair that lives as long as this process: nobody opens what it has closed. */
    static final class Keys implements CryptoKeyReader {
        private final KeyPair pair;

        Keys() throws Exception {
            KeyPairGenerator generator = KeyPairGenerator.getInstance("RSA");
            generator.initialize(2048);
            pair = generator.generateKeyPair();
        }

        private static EncryptionKeyInfo pem(String kind, byte[] encoded) {
            String body = Base64.getMimeEncoder(64, new byte[] {'\n'}).encodeToString(encoded);
            String text = "-----BEGIN " + kind + "-----\n" + body + "\n-----END " + kind + "-----\n";
            return new EncryptionKeyInfo(text.getBytes(StandardCharsets.UTF_8), Map.of("made", "for the corpus"));
        }

        @Override
        public EncryptionKeyInfo getPublicKey(String name, Map<String, String> metadata) {
            return pem("PUBLIC KEY", pair.getPublic().getEncoded());
        }

        @Override
        public EncryptionKeyInfo getPrivateKey(String name, Map<String, String> metadata) {
            return pem("PRIVATE KEY", pair.getPrivate().getEncoded());
        }
    }
}
