import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;

/**
 * The measured job on Kafka Streams, exactly_once_v2: a stateless mapValues on two stream threads.
 *
 * <p>Arguments: bootstrap, input, output, application id, commit interval in ms, folder.
 */
public final class StreamsJob {
  private static final AtomicLong FIRST_NS = new AtomicLong();

  private static byte[] change(byte[] value) {
    if (FIRST_NS.get() == 0) {
      Instant now = Instant.now();
      FIRST_NS.compareAndSet(0, now.getEpochSecond() * 1_000_000_000L + now.getNano());
    }
    byte[] changed = value.clone();
    changed[changed.length - 1] = 'T';
    return changed;
  }

  private static long commits(KafkaStreams streams) {
    double total = 0;
    for (var metric : streams.metrics().entrySet()) {
      var name = metric.getKey();
      if (name.name().equals("commit-total") && name.group().equals("stream-thread-metrics")) {
        total += ((Number) metric.getValue().metricValue()).doubleValue();
      }
    }
    return (long) total;
  }

  public static void main(String[] arguments) throws Exception {
    Path folder = Path.of(arguments[5]);
    Properties settings = new Properties();
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[3]);
    settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, arguments[4]);
    settings.put(StreamsConfig.STATE_DIR_CONFIG, folder.resolve("state").toString());
    settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
    settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
    StreamsBuilder builder = new StreamsBuilder();
    var bytes = Serdes.ByteArray();
    builder.stream(arguments[1], Consumed.with(bytes, bytes))
        .mapValues(StreamsJob::change)
        .to(arguments[2], Produced.with(bytes, bytes));
    KafkaStreams streams = new KafkaStreams(builder.build(), settings);
    streams.setUncaughtExceptionHandler(
        error -> {
          error.printStackTrace();
          return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
    CountDownLatch done = new CountDownLatch(1);
    streams.setStateListener(
        (now, before) -> {
          if (now == KafkaStreams.State.ERROR) {
            done.countDown();
          }
        });
    Runtime.getRuntime()
        .addShutdownHook(
            new Thread(
                () -> {
                  try {
                    String report =
                        String.format(
                            "{\"progress\": [], \"first_record_ns\": %d, \"commits\": %d}",
                            FIRST_NS.get(), commits(streams));
                    streams.close(Duration.ofSeconds(10));
                    Files.writeString(folder.resolve("report.json"), report);
                  } catch (Exception error) {
                    error.printStackTrace();
                  }
                }));
    streams.start();
    done.await();
    System.exit(1);
  }
}
