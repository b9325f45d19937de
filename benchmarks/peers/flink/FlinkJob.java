import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.typeutils.TupleTypeInfo;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * The measured job on Flink: KafkaSource, map, KafkaSink EXACTLY_ONCE in a local MiniCluster.
 *
 * <p>Parallelism 2, object reuse, checkpoints into a local directory. Arguments: bootstrap, input,
 * output, id, checkpoint interval in ms, folder.
 */
public final class FlinkJob {
  private static final AtomicLong FIRST_NS = new AtomicLong();
  private static final AtomicLong CHECKPOINTS = new AtomicLong();
  private static final TypeInformation<Tuple2<byte[], byte[]>> RECORD =
      new TupleTypeInfo<>(
          PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO,
          PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO);

  /** The map; its first subtask also counts the completed checkpoints. */
  private static final class Change
      extends RichMapFunction<Tuple2<byte[], byte[]>, Tuple2<byte[], byte[]>>
      implements CheckpointListener {
    @Override
    public Tuple2<byte[], byte[]> map(Tuple2<byte[], byte[]> record) {
      if (FIRST_NS.get() == 0) {
        Instant now = Instant.now();
        FIRST_NS.compareAndSet(0, now.getEpochSecond() * 1_000_000_000L + now.getNano());
      }
      byte[] changed = record.f1.clone();
      changed[changed.length - 1] = 'T';
      return Tuple2.of(record.f0, changed);
    }

    @Override
    public void notifyCheckpointComplete(long id) {
      if (getRuntimeContext().getTaskInfo().getIndexOfThisSubtask() == 0) {
        CHECKPOINTS.incrementAndGet();
      }
    }
  }

  private static final class Deserializer
      implements KafkaRecordDeserializationSchema<Tuple2<byte[], byte[]>> {
    @Override
    public void deserialize(
        ConsumerRecord<byte[], byte[]> record, Collector<Tuple2<byte[], byte[]>> out) {
      out.collect(Tuple2.of(record.key(), record.value()));
    }

    @Override
    public TypeInformation<Tuple2<byte[], byte[]>> getProducedType() {
      return RECORD;
    }
  }

  private static final class Serializer
      implements KafkaRecordSerializationSchema<Tuple2<byte[], byte[]>> {
    private final String topic;

    Serializer(String topic) {
      this.topic = topic;
    }

    @Override
    public ProducerRecord<byte[], byte[]> serialize(
        Tuple2<byte[], byte[]> record, KafkaSinkContext context, Long timestamp) {
      return new ProducerRecord<>(topic, record.f0, record.f1);
    }
  }

  private static void report(Path folder) {
    try {
      Files.writeString(
          folder.resolve("report.json"),
          String.format(
              "{\"progress\": [], \"first_record_ns\": %d, \"commits\": %d}",
              FIRST_NS.get(), CHECKPOINTS.get()));
    } catch (Exception error) {
      error.printStackTrace();
    }
  }

  public static void main(String[] arguments) throws Exception {
    Path folder = Path.of(arguments[5]);
    Runtime.getRuntime().addShutdownHook(new Thread(() -> report(folder)));
    Configuration settings = new Configuration();
    settings.setString("rest.address", "127.0.0.1");
    settings.setString("rest.bind-address", "127.0.0.1");
    settings.setString("execution.checkpointing.interval", arguments[4] + " ms");
    settings.setString("execution.checkpointing.mode", "EXACTLY_ONCE");
    settings.setString("execution.checkpointing.storage", "filesystem");
    settings.setString("execution.checkpointing.dir", folder.resolve("checkpoints").toUri() + "");
    settings.setString("parallelism.default", "2");
    settings.setString("pipeline.object-reuse", "true");
    settings.setString("restart-strategy.type", "none");
    settings.setString("taskmanager.numberOfTaskSlots", "2");
    var environment = StreamExecutionEnvironment.createLocalEnvironment(2, settings);
    KafkaSource<Tuple2<byte[], byte[]>> source =
        KafkaSource.<Tuple2<byte[], byte[]>>builder()
            .setBootstrapServers(arguments[0])
            .setTopics(arguments[1])
            .setGroupId(arguments[3])
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setDeserializer(new Deserializer())
            .build();
    Properties producer = new Properties();
    // Flink's own default is one hour, above the broker's transaction.max.timeout.ms (15 minutes).
    producer.setProperty("transaction.timeout.ms", "600000");
    KafkaSink<Tuple2<byte[], byte[]>> sink =
        KafkaSink.<Tuple2<byte[], byte[]>>builder()
            .setBootstrapServers(arguments[0])
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix(arguments[3])
            .setKafkaProducerConfig(producer)
            .setRecordSerializer(new Serializer(arguments[2]))
            .build();
    environment
        .fromSource(source, WatermarkStrategy.noWatermarks(), "in")
        .map(new Change())
        .returns(RECORD)
        .sinkTo(sink);
    environment.execute("bench");
  }
}
