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
 *   send DATADIR TOPIC SCRIPT                    the peer's script, with "encrypt" served by a new pair of keys
 *   node DATADIR PATH                            a node of the metadata store, in Base64
 */
public final class PulsarShapes {
    public static void main(String[] args) throws Exception {
        Path data = Path.of(args[1]).toAbsolutePath();
        if (args[0].equals("serve")) {
            serve(data, Integer.parseInt(args[2]), args[3], args[4]);
            return;
        }
        try (Peer peer = new Peer(data)) {
            if (args[0].equals("node")) {
                System.out.println(Peer.b64(peer.node(args[2])));
            } else {
                System.out.println(new Sender(peer, args[2]).encryption(new Keys()).file(Path.of(args[3])));
            }
        }
        System.exit(0);
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
