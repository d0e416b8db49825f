import com.google.protobuf.ByteString;
import io.grpc.ClientInterceptor;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.stub.MetadataUtils;
import io.grpc.stub.StreamObserver;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import tubemq.gateway.v1.GatewayServiceGrpc;
import tubemq.gateway.v1.AttachPartitionsRequest;
import tubemq.gateway.v1.AttachPartitionsResponse;
import tubemq.gateway.v1.BytesColumn;
import tubemq.gateway.v1.CloseSessionRequest;
import tubemq.gateway.v1.CommitRequest;
import tubemq.gateway.v1.FetchRequest;
import tubemq.gateway.v1.FetchResponse;
import tubemq.gateway.v1.MessageBatch;
import tubemq.gateway.v1.MessageHeader;
import tubemq.gateway.v1.OpenSessionRequest;
import tubemq.gateway.v1.PublishStreamRequest;
import tubemq.gateway.v1.PublishStreamResponse;
import tubemq.gateway.v1.QueryRouteRequest;
import tubemq.gateway.v1.QueryRouteResponse;
import tubemq.gateway.v1.SessionRef;
import tubemq.gateway.v1.SessionSettings;

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
                    if (answer.hasError()) {
                      throw new IllegalStateException(answer.getError().getText());
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
    requests.onNext(PublishStreamRequest.newBuilder().setBatch(batch).build());
    PublishStreamRequest.Finish finish = PublishStreamRequest.Finish.getDefaultInstance();
    requests.onNext(PublishStreamRequest.newBuilder().setFinish(finish).build());
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
      if (batch.getMessagesCount() == 0) {
        continue;
      }
      for (FetchResponse.Message message : batch.getMessagesList()) {
        System.out.println("read " + message.getValue().toStringUtf8());
      }
      seen += batch.getMessagesCount();
      within30s()
          .commit(CommitRequest.newBuilder().setBatch(batch.getBatch()).build());
    }
  }

  private void close() {
    within30s().closeSession(CloseSessionRequest.newBuilder().build());
    System.out.println("closed");
  }
}
