import com.google.protobuf.ByteString;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;
import tubemq.gateway.v1.GatewayGrpc;
import tubemq.gateway.v1.GatewayOuterClass.AttachPartitionsRequest;
import tubemq.gateway.v1.GatewayOuterClass.AttachPartitionsResponse;
import tubemq.gateway.v1.GatewayOuterClass.BytesColumn;
import tubemq.gateway.v1.GatewayOuterClass.CloseSessionRequest;
import tubemq.gateway.v1.GatewayOuterClass.CommitRequest;
import tubemq.gateway.v1.GatewayOuterClass.FetchRequest;
import tubemq.gateway.v1.GatewayOuterClass.FetchResponse;
import tubemq.gateway.v1.GatewayOuterClass.MessageBatch;
import tubemq.gateway.v1.GatewayOuterClass.MessageHeader;
import tubemq.gateway.v1.GatewayOuterClass.OpenSessionRequest;
import tubemq.gateway.v1.GatewayOuterClass.PublishRequest;
import tubemq.gateway.v1.GatewayOuterClass.PublishResponse;
import tubemq.gateway.v1.GatewayOuterClass.QueryRouteRequest;
import tubemq.gateway.v1.GatewayOuterClass.QueryRouteResponse;
import tubemq.gateway.v1.GatewayOuterClass.SessionRef;
import tubemq.gateway.v1.GatewayOuterClass.SessionSettings;

/**
 * A client that knows gateway.proto and nothing else of the project: it publishes some messages, reads until it
 * has seen so many, confirms them, and prints what it did.
 *
 * <p>Arguments: the gateway's address, a topic, a group, how many messages to publish, how many to read, and
 * whether to begin at the beginning ("beginning") or where the group stands ("group").
 */
public final class GatewayClient {
  private final GatewayGrpc.GatewayBlockingStub gateway;
  private final SessionRef session =
      SessionRef.newBuilder()
          .setClientId("java-" + ProcessHandle.current().pid())
          .setEpoch(System.nanoTime())
          .build();

  private GatewayClient(ManagedChannel channel) {
    gateway = GatewayGrpc.newBlockingStub(channel);
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
  private GatewayGrpc.GatewayBlockingStub within30s() {
    return gateway.withDeadlineAfter(30, TimeUnit.SECONDS);
  }

  private void open(String group) {
    SessionSettings settings = SessionSettings.newBuilder().setGroup(group).build();
    OpenSessionRequest request =
        OpenSessionRequest.newBuilder()
            .setSession(session)
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
    PublishRequest request =
        PublishRequest.newBuilder().setSession(session).setBatch(batch).setName("java").build();
    PublishResponse answer = within30s().publish(request);
    System.out.println("published in " + answer.getReceiptsCount() + " receipts");
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
        QueryRouteRequest.newBuilder().setSession(session).addTopics(topic).build();
    QueryRouteResponse route = within30s().queryRoute(question);
    AttachPartitionsRequest.Builder request =
        AttachPartitionsRequest.newBuilder().setSession(session).addTopics(topic);
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
      FetchRequest request = FetchRequest.newBuilder().setSession(session).setWaitMs(5_000).build();
      FetchResponse batch = within30s().fetch(request);
      if (batch.getMessagesCount() == 0) {
        continue;
      }
      for (FetchResponse.Message message : batch.getMessagesList()) {
        System.out.println("read " + message.getValue().toStringUtf8());
      }
      seen += batch.getMessagesCount();
      within30s()
          .commit(CommitRequest.newBuilder().setSession(session).setBatch(batch.getBatch()).build());
    }
  }

  private void close() {
    within30s().closeSession(CloseSessionRequest.newBuilder().setSession(session).build());
    System.out.println("closed");
  }
}
