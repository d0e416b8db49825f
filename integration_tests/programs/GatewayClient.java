import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.ErrorInfo;
import io.grpc.ClientInterceptor;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.MetadataUtils;
import io.grpc.stub.StreamObserver;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;
import java.util.concurrent.CompletableFuture;
import java.util.Iterator;
import java.util.concurrent.TimeUnit;
import tubemq.gateway.v1.GatewayServiceGrpc;
import tubemq.gateway.v1.AttachPartitionsRequest;
import tubemq.gateway.v1.AttachPartitionsResponse;
import tubemq.gateway.v1.Bounds;
import tubemq.gateway.v1.BytesColumn;
import tubemq.gateway.v1.CheckTopicRequest;
import tubemq.gateway.v1.CloseSessionRequest;
import tubemq.gateway.v1.CommitRequest;
import tubemq.gateway.v1.FetchRequest;
import tubemq.gateway.v1.FetchResponse;
import tubemq.gateway.v1.MessageBatch;
import tubemq.gateway.v1.MessageHeader;
import tubemq.gateway.v1.OpenSessionRequest;
import tubemq.gateway.v1.Partition;
import tubemq.gateway.v1.PublishStreamRequest;
import tubemq.gateway.v1.PublishStreamResponse;
import tubemq.gateway.v1.QueryBoundsRequest;
import tubemq.gateway.v1.QueryRouteRequest;
import tubemq.gateway.v1.QueryRouteResponse;
import tubemq.gateway.v1.ReadRangeRequest;
import tubemq.gateway.v1.ReadRangeResponse;
import tubemq.gateway.v1.RecordBatch;
import tubemq.gateway.v1.SessionRef;
import tubemq.gateway.v1.SessionSettings;
import tubemq.gateway.v1.Store;

/**
 * A client that knows gateway.proto and nothing else of the project: it publishes some messages, reads until it
 * has seen so many, confirms them, and prints what it did.
 *
 * <p>Arguments: the gateway's address, a topic, a group, how many messages to publish, how many to read, and
 * whether to begin at the beginning ("beginning") or where the group stands ("group").
 */
public final class GatewayClient {
  private static final Metadata.Key<byte[]> SESSION =
      Metadata.Key.of("tubemq-session-bin", Metadata.BINARY_BYTE_MARSHALLER);

  private final GatewayServiceGrpc.GatewayServiceBlockingStub gateway;
  private final GatewayServiceGrpc.GatewayServiceStub streams;
  private final SessionRef session =
      SessionRef.newBuilder()
          .setClientId("java-" + ProcessHandle.current().pid())
          .setEpoch(System.currentTimeMillis())
          .setSecret(ByteString.copyFrom(new SecureRandom().generateSeed(32)))
          .build();

  private GatewayClient(ManagedChannel channel) {
    // Every call names the session in its metadata.
    Metadata metadata = new Metadata();
    metadata.put(SESSION, session.toByteArray());
    ClientInterceptor inSession = MetadataUtils.newAttachHeadersInterceptor(metadata);
    gateway = GatewayServiceGrpc.newBlockingStub(channel).withInterceptors(inSession);
    streams = GatewayServiceGrpc.newStub(channel).withInterceptors(inSession);
  }

  public static void main(String[] arguments) throws InterruptedException {
    ManagedChannel channel = ManagedChannelBuilder.forTarget(arguments[0]).usePlaintext().build();
    try {
      GatewayClient client = new GatewayClient(channel);
      client.open(arguments[2]);
      client.publish(arguments[1], Integer.parseInt(arguments[3]));
      client.attach(arguments[1], arguments[5].equals("beginning"));
      client.read(Integer.parseInt(arguments[4]));
      client.readRanges(arguments[1]);
      client.askForTopicThatIsNotThere();
      client.close();
    } finally {
      channel.shutdownNow().awaitTermination(10, TimeUnit.SECONDS);
    }
  }

  /** Every call has a deadline. */
  private GatewayServiceGrpc.GatewayServiceBlockingStub within30s() {
    return gateway.withDeadlineAfter(30, TimeUnit.SECONDS);
  }

  private void open(String group) {
    SessionSettings settings = SessionSettings.newBuilder().setGroup(group).build();
    OpenSessionRequest request =
        OpenSessionRequest.newBuilder()
            .setClientId(session.getClientId())
            .setEpoch(session.getEpoch())
            .setSecret(session.getSecret())
            .setSettings(settings)
            .setLanguage("Java " + System.getProperty("java.version"))
            .build();
    within30s().openSession(request);
  }

  private void publish(String topic, int count) {
    if (count == 0) {
      return;
    }
    StringBuilder bodies = new StringBuilder();
    long[] borders = new long[count + 1];
    for (int number = 0; number < count; number++) {
      bodies.append("java ").append(number);
      borders[number + 1] = bodies.length();
    }
    BytesColumn values =
        BytesColumn.newBuilder()
            .setData(ByteString.copyFrom(bodies.toString(), StandardCharsets.US_ASCII))
            .setBorders(longs(borders))
            .build();
    // All messages have the only topic and the only header: code 0, four bytes each.
    ByteString zeros = ByteString.copyFrom(new byte[4 * count]);
    MessageBatch batch =
        MessageBatch.newBuilder()
            .addTopics(topic)
            .setTopicCodes(zeros)
            .setValues(values)
            .addHeaders(MessageHeader.getDefaultInstance())
            .setHeaderCodes(zeros)
            .build();
    System.out.println("published in " + stored(batch).getReceiptsCount() + " receipts");
  }

  /** Sends one batch through a stream of its own, and returns the answer that tells what is stored. */
  private PublishStreamResponse stored(MessageBatch batch) {
    CompletableFuture<PublishStreamResponse> last = new CompletableFuture<>();
    StreamObserver<PublishStreamRequest> requests =
        streams
            .withDeadlineAfter(30, TimeUnit.SECONDS)
            .publishStream(
                new StreamObserver<>() {
                  private PublishStreamResponse latest;

                  @Override
                  public void onNext(PublishStreamResponse answer) {
                    if (answer.getFailuresCount() > 0) {
                      throw new IllegalStateException(answer.getFailures(0).getError().getText());
                    }
                    latest = answer;
                  }

                  @Override
                  public void onError(Throwable failure) {
                    last.completeExceptionally(failure);
                  }

                  @Override
                  public void onCompleted() {
                    last.complete(latest);
                  }
                });
    PublishStreamRequest.Begin begin = PublishStreamRequest.Begin.newBuilder().setName("java").build();
    requests.onNext(PublishStreamRequest.newBuilder().setBegin(begin).build());
    requests.onNext(PublishStreamRequest.newBuilder().setBatch(batch).setNumber(1).build());
    requests.onCompleted();
    return last.join();
  }

  private static ByteString longs(long[] numbers) {
    ByteBuffer buffer = ByteBuffer.allocate(8 * numbers.length).order(ByteOrder.LITTLE_ENDIAN);
    for (long number : numbers) {
      buffer.putLong(number);
    }
    return ByteString.copyFrom(buffer.flip());
  }

  private void attach(String topic, boolean atBeginning) {
    QueryRouteRequest question =
        QueryRouteRequest.newBuilder().addTopics(topic).build();
    QueryRouteResponse route = within30s().queryRoute(question);
    AttachPartitionsRequest.Builder request =
        AttachPartitionsRequest.newBuilder().addTopics(topic);
    for (QueryRouteResponse.Located located : route.getPartitionsList()) {
      AttachPartitionsRequest.Wanted.Builder wanted =
          request.addPartitionsBuilder().setPartition(located.getPartition());
      if (atBeginning) {
        wanted.setOffset(0);
      }
    }
    AttachPartitionsResponse answer = within30s().attachPartitions(request.build());
    for (AttachPartitionsResponse.Attached attached : answer.getPartitionsList()) {
      if (attached.hasError()) {
        throw new IllegalStateException(attached.getError().getText());
      }
    }
    System.out.println("attached " + answer.getPartitionsCount());
  }

  private void read(int count) {
    for (int seen = 0; seen < count; ) {
      FetchRequest request = FetchRequest.newBuilder().setWaitMs(5_000).build();
      FetchResponse batch = within30s().fetch(request);
      Records records = new Records(batch.getRecords());
      if (records.count() == 0) {
        continue;
      }
      for (int row = 0; row < records.count(); row++) {
        System.out.println("read " + records.value(row).toStringUtf8());
      }
      seen += records.count();
      within30s()
          .commit(CommitRequest.newBuilder().setBatch(batch.getBatch()).build());
    }
  }

  /** Reads all that the topic's partitions hold, without moving the group. */
  private void readRanges(String topic) {
    QueryRouteRequest question = QueryRouteRequest.newBuilder().addTopics(topic).build();
    for (QueryRouteResponse.Located located : within30s().queryRoute(question).getPartitionsList()) {
      Partition partition = located.getPartition();
      Store store =
          Store.newBuilder()
              .setTopic(topic)
              .setBrokerId(partition.getBrokerId())
              .setStore(partition.getPartitionId() / 10_000)
              .build();
      Bounds bounds =
          within30s()
              .queryBounds(QueryBoundsRequest.newBuilder().addStores(store).build())
              .getAnswers(0)
              .getBounds();
      ReadRangeRequest range =
          ReadRangeRequest.newBuilder()
              .setPartition(partition)
              .setStart(bounds.getEarliest())
              .setEnd(bounds.getLatest())
              .setOwnStore(true)
              .build();
      Iterator<ReadRangeResponse> events = within30s().readRange(range);
      while (events.hasNext()) {
        ReadRangeResponse event = events.next();
        if (event.hasBatch()) {
          Records records = new Records(event.getBatch());
          for (int row = 0; row < records.count(); row++) {
            ByteString attributes = records.attributes(row);
            System.out.printf(
                "range %d %s %s%n",
                records.offset(row),
                records.value(row).toStringUtf8(),
                attributes == null ? "none" : attributes.toStringUtf8());
          }
        }
      }
    }
  }

  // The columns of a batch.
  /** The records of a batch. Numbers in columns are little-endian; what is left out is told in the .proto. */
  private static final class Records {
    private final RecordBatch batch;
    private final ByteBuffer borders;
    private final ByteBuffer ordinals;
    private final boolean withAttributes;

    Records(RecordBatch batch) {
      this.batch = batch;
      borders = numbers(batch.getBorders());
      ordinals = numbers(batch.getOrdinals());
      withAttributes = borders.capacity() == 4 * (2 * count() + 1);
    }

    int count() {
      return batch.getCount();
    }

    ByteString value(int row) {
      return piece(row);
    }

    /** The text of attributes as TubeMQ writes it; null where a message has none. */
    ByteString attributes(int row) {
      ByteString marks = batch.getHasAttributes();
      boolean has = withAttributes && (marks.isEmpty() || marks.byteAt(row) != 0);
      return has ? piece(count() + row) : null;
    }

    long messageId(int row) {
      return numbers(batch.getMessageIds()).getLong(8 * row);
    }

    /** Where a record is, in a batch that is dense. */
    long offset(int row) {
      long ordinal = batch.getOrdinals().isEmpty() ? row : ordinals.getLong(8 * row);
      return batch.getStart() + 28 * ordinal;
    }

    private ByteString piece(int number) {
      return batch.getData().substring(borders.getInt(4 * number), borders.getInt(4 * number + 4));
    }

    private static ByteBuffer numbers(ByteString column) {
      return column.asReadOnlyByteBuffer().order(ByteOrder.LITTLE_ENDIAN);
    }
  }

  // What went wrong.
  private void askForTopicThatIsNotThere() {
    try {
      within30s().checkTopic(CheckTopicRequest.newBuilder().setTopic("not_there").build());
    } catch (StatusRuntimeException failure) {
      try {
        ErrorInfo info = StatusProto.fromThrowable(failure).getDetails(0).unpack(ErrorInfo.class);
        System.out.println("refused " + failure.getStatus().getCode() + " " + info.getReason());
      } catch (InvalidProtocolBufferException error) {
        throw new IllegalStateException(error);
      }
    }
  }

  private void close() {
    within30s().closeSession(CloseSessionRequest.newBuilder().build());
    System.out.println("closed");
  }
}
