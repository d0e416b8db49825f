"""The tree of errors, and the one table of their texts.

Every error has a *condition* (a constant name to search for) and named parameters, and reads
``[CONDITION] what happened, with the value seen; what to do.`` Errors survive pickling, because
Spark carries them from a task's process to the driver's. Secrets are never parameters.
"""

from typing import Any, Final, Self

_ANSWER: Final = "{peer} answered {code} ({name}) while {during}: {text}; {hint}."
"""Of a result code other than success; what to do is in the table of codes, ``protocol.errcodes``."""

CONDITIONS: Final[dict[str, str]] = {
    # What the user gave.
    "TUBEMQ_BAD_ADDRESS": "'{address}' is not an address; write host:port, for example 10.1.2.3:8715.",
    "TUBEMQ_SPARK_TOO_OLD": "PySpark {found} is installed, but tubemq_spark needs {oldest} or newer; run: pip install 'pyspark>={oldest}' (on a cluster: a newer Spark).",
    "TUBEMQ_BAD_MESSAGE": "A message cannot be sent: {what}; correct it, or leave it out.",
    "TUBEMQ_COMMAND_NO_MASTER": 'No master is named; give --master HOST:PORT, set {variable} in the environment, or write master = "HOST:PORT" into {file}.',
    "TUBEMQ_COMMAND_ARGUMENT": "The arguments do not fit: {problem}; {advice}.",
    "TUBEMQ_COMMAND_BROKER": "Broker {broker} does not say where the group stands: {cause}; mend that first.",
    "TUBEMQ_COMMAND_NO_TOKEN": "Changes of the cluster need its token (confModAuthToken of the masters); set {variable} in the environment, or name a file that holds it in --token-file. An embedded server has TubeMQ's public default unless it was started with another one: {variable}={default}.",
    "TUBEMQ_COMMAND_NO_TOPIC": "The cluster has no topic; create one with topics create.",
    "TUBEMQ_COMMAND_NO_BROKER": "No broker of the cluster is online; start one, or name those that are to have the topic in --brokers.",
    "TUBEMQ_COMMAND_TOPIC_EXISTS": "Topic '{topic}' exists, and nothing was created; choose another name, change it with topics alter, or add --if-not-exists.",
    "TUBEMQ_COMMAND_GROUP_UNKNOWN": "The group '{group}' has no members, and no broker has a position of it in {where}; correct its name, or try again some seconds after its first consumer came.",
    "TUBEMQ_COMMAND_GROUP_IN_USE": "The group '{group}' has {members}, for example {example}, and positions can only be written while it has none; stop its consumers (masters forget one that ended without a word after half a minute).",
    "TUBEMQ_COMMAND_FILE": "{path} cannot be used: {cause}; mend that, or name another file or folder.",
    "TUBEMQ_COMMAND_FILE_EXISTS": "{path} exists, and nothing was copied; name another folder.",
    "TUBEMQ_COMMAND_SYSTEM": "The operating system refuses: {cause}; mend that, and run the command again.",
    "TUBEMQ_COMMAND_NEEDS": "{what} needs another package; install it: pip install '{package}'.",
    "TUBEMQ_COMMAND_SETTING": "{source} cannot be used: {problem}; correct it.",
    "TUBEMQ_BAD_SETTING": "The setting {name} is {value}; it must be {rule}.",
    "TUBEMQ_URL_MALFORMED": "The URL cannot be read: {problem}; its form is tubemq://host:port,host:port?key=value&key=value.",
    "TUBEMQ_URL_KEY": "The URL has the key {key}, which is not known; {advice}",
    "TUBEMQ_URL_KEY_REPEATED": "The key '{key}' is in the URL more than once; give it once.",
    "TUBEMQ_MASTERS_AND_GATEWAYS": "Both masters and gateways are named; name one or the other.",
    "TUBEMQ_TOPICS_NOT_LISTED": "The administration API of the masters, which alone lists the topics there are, did not answer at {servers}: {cause}; name its host:port in the option 'tubemq.master.web' (clients in Python: master_web; for all who use a gateway its operator sets master_web), or the topics in 'subscribe'.",
    "TUBEMQ_BROKERS_NOT_LISTED": "The administration API of the masters, which alone knows where brokers serve theirs, did not answer at {servers}: {cause}; name its host:port in the option 'tubemq.master.web' (clients in Python: master_web; for all who use a gateway its operator sets master_web).",
    "TUBEMQ_ADMIN_NO_ANSWER": "The web server {server} gave no usable answer: {cause}; check the web port of the master or broker.",
    "TUBEMQ_NO_ACTIVE_MASTER": "No active master serves its administration API ({causes}); name its host:port as master_web when you connect, or give it to admin().",
    "TUBEMQ_ADMIN_NO_TOKEN": "{method} changes the cluster and needs its token; pass token= (confModAuthToken of the masters).",
    "TUBEMQ_ADMIN_REFUSED": "{server} refused {method} with code {code} ({reason}); correct the call, or the token that it carries (confModAuthToken).",
    "TUBEMQ_ADMIN_TOKEN": "{server} refused {method}, because the token that it carries is wrong (code {code}: {reason}); give the confModAuthToken of the masters.",
    "TUBEMQ_GROUPS_NOT_TOLD": "Broker {broker} cannot tell the positions of {groups} ({reason}), only those of other groups; connect a consumer of the group to it, or restart it.",
    "TUBEMQ_PARTITION_NOT_LISTED": "The layout does not list partition {partition}; ask for the layout of its topic.",
    # The columns of a DataFrame.
    "TUBEMQ_SCHEMA_EMPTY": "The schema is empty; name at least one of these columns: {known}.",
    "TUBEMQ_SCHEMA_UNKNOWN_COLUMN": (
        "The schema names the column '{column}', which the rows do not have{suggestion} They have: {known}."
    ),
    "TUBEMQ_SCHEMA_WRONG_TYPE": (
        "Column '{column}' is {expected}, not {given}; read it as {expected} and cast it in the query."
    ),
    "TUBEMQ_SCHEMA_NOT_NULL": (
        "Column '{column}' can be null, but the schema says NOT NULL; leave NOT NULL out."
    ),
    "TUBEMQ_SINK_OVERWRITE": "A TubeMQ topic cannot be overwritten, which is what this mode asks for; use mode('append') or outputMode('append'), and write aggregates with outputMode('update') and foreachBatch.",
    "TUBEMQ_SINK_NO_VALUE": "The DataFrame has no column 'value', only {found}; name the column of message bodies 'value', or make it of all columns with selectExpr('to_json(struct(*)) as value').",
    "TUBEMQ_SINK_NO_TOPIC": "No topic is given; set the option 'topic', or add a column 'topic'.",
    "TUBEMQ_SINK_HALF_ROUTE": (
        "The DataFrame has the column '{found}' without its counterpart; a route needs both 'brokerId' and 'partition'."
    ),
    "TUBEMQ_SINK_HALF_NULL_ROUTE": "Row {row} for topic '{topic}' has brokerId {broker} and partition {partition}; give both, or leave both null.",
    "TUBEMQ_SINK_UNKNOWN_COLUMN": (
        "A write does not take the column '{column}'{suggestion} It takes: {known}; drop the others."
    ),
    "TUBEMQ_SINK_DUPLICATE_COLUMN": "The DataFrame has more than one column '{column}'; rename or drop the others.",
    "TUBEMQ_SINK_WRONG_TYPE": "Column '{column}' is {given}, but must be {expected}; {hint}.",
    "TUBEMQ_DEAD_LETTER": "Row {row} could not be written, nor its dead letter to topic '{topic}': {cause}; open that topic for publishing, or allow it messages as long as those of the other topics.",
    "TUBEMQ_DEAD_LETTER_TOPIC": "Option 'deadLetterTopic' is '{topic}', the topic that the rows go to; name another one.",
    "TUBEMQ_SINK_NULL_VALUE": (
        "Row {row} for topic '{topic}' has a null value, which TubeMQ cannot store; filter such rows out."
    ),
    "TUBEMQ_SINK_NULL_TOPIC": (
        "Row {row} has a null topic; fill the column 'topic' in every row, or set the option 'topic'."
    ),
    # The embedded server.
    "TUBEMQ_LISTEN_FAILED": "Cannot listen on {endpoint}: {cause}; set {setting} to another port, or to 0 for any free one.",
    "TUBEMQ_HOST_ELSEWHERE": "'{host}' is not an address of this machine ({cause}); listen on 127.0.0.1, or on one of this machine's addresses.",
    "TUBEMQ_OPEN_TO_ALL": "Other machines can reach the server on {host}, and its administration token is the default one, which is public; set your own (--token-file or EmbeddedSettings.admin_token), or listen on 127.0.0.1.",
    "TUBEMQ_DATA_DIR_UNUSABLE": "The directory {path} cannot be used: {cause}; choose a directory that this user can write to.",
    "TUBEMQ_DATA_DIR_UNUSABLE.FULL": "The disk of the directory {path} is full: {cause}; free space there, or choose a directory on another disk.",
    "TUBEMQ_DATA_DIR_IN_USE": "The directory {path} is in use by process {owner}; stop that server or choose another directory.",
    "TUBEMQ_STORE_DAMAGED": "{path} is damaged: {what}; restore it from a backup, or move it away to start without it.",
    "TUBEMQ_NO_SUCH_BROKER": "Broker {broker_id} does not exist; the broker ids are: {known}.",
    "TUBEMQ_NO_SUCH_TOPIC": "Broker {broker_id} has no topic {topic}; name a topic that it has.",
    "TUBEMQ_BROKER_STOPPED": "Broker {broker_id} is stopped; start it first.",
    "TUBEMQ_BROKER_ADDRESSES": (
        "Each broker needs a loopback address of its own, counted up from that of the first one, but the "
        "server listens on {host} and is reached as {advertised}; listen on 127.0.0.1, or run one broker."
    ),
    "TUBEMQ_BAD_TOPIC_NAME": "'{topic}' is not a valid topic name; use 2 to 64 letters, digits or underscores, beginning with a letter.",
    "TUBEMQ_BAD_TOPIC_SHAPE": "The topic {topic} cannot have this shape: {what}; correct the numbers.",
    # A peer broke, or we broke, the wire protocol.
    "TUBEMQ_PROTOCOL_VIOLATION": "The peer broke the protocol: {what}; the connection was closed.",
    "TUBEMQ_PROTOCOL_MISUSE": "The protocol layer was misused: {what}; please report this as a bug.",
    "TUBEMQ_BAD_PACKED_STRING": "The peer sent {text!r} where {form} was expected: {what}; compare the versions of both sides.",
    "TUBEMQ_POSITION_MOVED": "The broker's position in {partition} is {actual}, but {expected} was expected; register the partition again.",
    # Reaching a peer.
    "TUBEMQ_PROCESS_EXHAUSTED": "This process has no file descriptor or no thread left: {cause}; close what it does not need, or raise its limits (ulimit -n, ulimit -u).",
    "TUBEMQ_CONNECT_FAILED": "Cannot connect to {endpoint}: {cause}; check the address and that the server runs.",
    "TUBEMQ_TLS_FILE": "{option} names {path}, which cannot be used: {cause}; name a PEM file that exists on every node.",
    "TUBEMQ_TLS_CERTIFICATE": "The certificate of {endpoint} is not accepted: {cause}; {hint}.",
    "TUBEMQ_TLS_REFUSED": "{endpoint} refuses TLS with this client: {cause}; {hint}.",
    "TUBEMQ_TLS_NOT_SPOKEN": "{endpoint} does not speak TLS: {cause}; name the TLS port (masters: 8716 by default), or set tubemq.tls.enabled=false.",
    "TUBEMQ_TLS_EXPECTED": "{endpoint} speaks TLS only; set tubemq.tls.enabled=true, or name the port without TLS (masters: 8715 by default).",
    "TUBEMQ_CLIENT_CLOSED": "The client is closed; make a new one.",
    "TUBEMQ_CONNECTION_LOST": "The connection to {endpoint} was lost while {during}: {cause}; try again.",
    "TUBEMQ_NO_MASTER": "No master answered while {during}; tried {tried}. Check the masters' addresses (in Spark: tubemq.master.servers); masters listen on port 8715 by default.",
    "TUBEMQ_NOT_A_MASTER": "{endpoint} is {what}, not a TubeMQ master; correct the masters' addresses (in Spark: tubemq.master.servers); masters listen on port 8715 by default.",
    "TUBEMQ_TIMEOUT": "No answer from {endpoint} within {timeout_ms} ms while {during}; raise tubemq.rpcTimeoutMs or look at the server.",
    "TUBEMQ_LEASES_TAKEN": "All {count} reader groups ({groups}) were in use for {partition} for {waited_ms} ms; raise readerGroups.size, or let fewer tasks and queries read the same partition at the same time.",
    "TUBEMQ_NO_PROGRESS": "Reading {partition} made no progress at offset {position} (of {end}) for {timeout_ms} ms: {trouble}; check the broker, or raise tubemq.fetchTimeoutMs.",
    # A peer's answers.
    "TUBEMQ_BAD_ANSWER": "{endpoint} answered with something unexpected while {during}: {what}; check that a TubeMQ server listens there, and its version.",
    "TUBEMQ_MASTER_TOO_OLD": "The master {peer} does not know method {method}, which TubeMQ has had since November 2021; upgrade the TubeMQ servers.",
    "TUBEMQ_RPC": _ANSWER,
    "TUBEMQ_GROUP_CONFLICT.CONSUME_TYPE": _ANSWER,
    "TUBEMQ_GROUP_CONFLICT.TOPICS": _ANSWER,
    "TUBEMQ_GROUP_CONFLICT.MESSAGE_TYPES": _ANSWER,
    "TUBEMQ_GROUP_CONFLICT.SESSION_KEY": _ANSWER,
    "TUBEMQ_GROUP_CONFLICT.SELECT_BIG": _ANSWER,
    "TUBEMQ_GROUP_CONFLICT.SOURCE_COUNT": _ANSWER,
    "TUBEMQ_GROUP_CONFLICT.NODE_ID": _ANSWER,
    "TUBEMQ_TOPIC_NOT_DEPLOYED": "{text}, as {peer} says ({code}); {hint}.",
    "TUBEMQ_GROUP_FORBIDDEN": _ANSWER,
    "TUBEMQ_MESSAGE_TYPES_FORBIDDEN": _ANSWER,
    "TUBEMQ_NOT_AUTHENTICATED": _ANSWER,
    "TUBEMQ_NOT_AUTHENTICATED.NO_CREDENTIALS": _ANSWER,
    "TUBEMQ_NOT_AUTHENTICATED.WRONG_PASSWORD": _ANSWER,
    "TUBEMQ_NOT_AUTHENTICATED.CLOCK": _ANSWER,
    "TUBEMQ_NOT_AUTHENTICATED.VISIT_TOKEN": _ANSWER,
    "TUBEMQ_REMOTE_EXCEPTION": "{peer} failed while {during} with {exception}: {text}; look at the server's log.",
    # Producing.
    "TUBEMQ_TOPIC_NAME": "'{topic}' cannot be published to: a topic name is a text of 1 to 64 characters and is not one of TubeMQ's own; correct it.",
    "TUBEMQ_TOPIC_UNKNOWN": "Topic '{topic}' does not exist; create it, or correct its name.",
    "TUBEMQ_TOPIC_UNPUBLISHABLE": "Topic '{topic}' cannot be published to: the master listed no partition of it for {waited_ms} ms; create it, or open it for publishing (TubeMQ takes up to a minute for either).",
    "TUBEMQ_PARTITION_UNKNOWN": "Topic '{topic}' has no partition {partition} that can be published to; choose one of {existing}.",
    "TUBEMQ_PARTITION_AWAY": "Partition {partition} of topic '{topic}' exists, but the master has not listed it for {waited_ms} ms; start its broker, or open the topic on it for publishing, and send again.",
    "TUBEMQ_PARTITIONER_CHOICE": "The partitioner {partitioner} returned {chosen} for a message to topic '{topic}'; it must return one of the partitions that it is given: {existing}.",
    "TUBEMQ_MESSAGE_TOO_LONG": "A message of {size} bytes for topic '{topic}', {message}, is above the limit of {limit} bytes; send smaller messages, or raise the topic's maxMsgSizeInMB.",
    "TUBEMQ_SEND_FAILED": "{message} was not stored in {partition} (attempts: {attempts}): {cause}; {hint}.",
    "TUBEMQ_SEND_FAILED.AMBIGUOUS": "{message} was sent to {partition} and may or may not be stored (attempts: {attempts}, of which {unanswered} without a clear answer): {cause}; {hint}, and look for the message before it is sent again.",
    "TUBEMQ_PARTITIONER_FAILED": "The partitioner {partitioner} raised {cause} for a message to topic '{topic}'; it must return one of the partitions that it is given.",
    "TUBEMQ_SEND_WOULD_WAIT": "A message to topic '{topic}' would have to wait: {cause}; send it later, or outside of callbacks with block=True.",
    "TUBEMQ_FLUSH_TIMEOUT": "{unacknowledged} messages have no outcome after {seconds} s; they are still under way, so flush again or look at the brokers.",
    "TUBEMQ_PRODUCER_BROKEN": "The producer was ended by {cause} with {unacknowledged} messages not acknowledged; open a new one and send them again.",
    "TUBEMQ_MESSAGE_ABANDONED": "{message} was abandoned: {cause}; {fate}.",
    "TUBEMQ_PRODUCER_THREAD": "The producer belongs to the thread '{owner}', but '{caller}' uses it; give each thread a producer of its own, or share one of TubeMQClient.producer().",
    "TUBEMQ_PRODUCER_IN_CALLBACK": "A callback calls {method}(), for which all messages would have to wait; call it in another thread.",
    "TUBEMQ_PRODUCER_FORKED": "The producer belongs to process {owner}, which was forked; open a new one in process {process}.",
    "TUBEMQ_PRODUCER_CLOSED": "The producer is closed, and {unacknowledged} of its messages were not acknowledged; open a new one to send them again.",
    "TUBEMQ_PRODUCER_LOOP": "The producer belongs to another event loop than the one that calls it; make one in each event loop.",
    # Consuming in a group.
    "TUBEMQ_CONFIRM_CONTEXT": "'{context}' is not the context of a batch; pass a batch that was fetched, or its context unchanged (fetch returns None when nothing came).",
    # Consumers of both kinds.
    "TUBEMQ_CONSUMER_OPEN": "The consumer of group {group} is open already; open it once, with open() or with a with block.",
    "TUBEMQ_CONSUMER_CLOSED": "The consumer of group {group} is {state}; {advice}.",
    "TUBEMQ_CONSUMER_FORKED": "The consumer belongs to process {owner}, which was forked; open a new one in process {process}.",
    "TUBEMQ_CONSUMER_LOOP": "The consumer of group {group} belongs to another event loop than the one that calls it; make one in each event loop.",
    # Consumers that choose their partitions themselves.
    "TUBEMQ_CONNECT.UNKNOWN": "The master lists no partition {partition}; choose one of partitions().",
    "TUBEMQ_CONNECT.NOT_SUBSCRIBABLE": "{partition} cannot be read now: its broker is away, its topic is closed for reading, or group {group} is barred from it; connect to it when partitions() says True.",
    "TUBEMQ_CONNECT.TOO_EARLY": "{partition} was refused {ago_ms} ms ago ({cause}); wait {wait_ms} ms before connecting to it again.",
    "TUBEMQ_CONNECT.ELSEWHERE": "{partition} is connected already, at offset {current} and not at {asked}; disconnect from it first.",
    "TUBEMQ_CALLBACK_FAILED": "{callback} raised {cause} for {partitions}; correct it. What has come was given up, if that was possible, and comes again.",
    "TUBEMQ_NOT_HELD": "The consumer does not hold {partition} now; choose one of its connected partitions.",
    "TUBEMQ_SEEK_UNSUPPORTED": "{partition} cannot be moved: the protocol of gateways has no call for members of a group; use an assigned consumer, give a start to group_consumer, or connect to the masters.",
    "TUBEMQ_CONFIRM_SOUGHT": "The batch of {partition} cannot be confirmed: the consumer has moved the partition to another offset since; fetch what comes from there.",
    "TUBEMQ_CONFIRM_LATE": "The batch of {partition} cannot be confirmed: {what}; its messages come again unless they were confirmed.",
    # Gateways.
    "TUBEMQ_GATEWAY_MISSING": "Gateways need the package {package}, which is not installed; run: pip install 'tubemq_spark[gateway]'.",
    "TUBEMQ_GATEWAY_AWAY": "No gateway answered while {during}; tried {tried}: {cause}. Check tubemq.gateway.servers, and that a gateway runs there.",
    "TUBEMQ_GATEWAY_LOST": "The gateway was lost while {during} ({cause}), and {unanswered} messages may or may not be stored; send them again if repeats do no harm, or set retryAmbiguous=true.",
    "TUBEMQ_GATEWAY_BUSY": "The gateway {gateway} is busy: {what}; try again in {retry_after_ms} ms, or start more gateways.",
    "TUBEMQ_GATEWAY_DRAINING": "The gateway {gateway} is about to stop and takes no new calls; use another one.",
    "TUBEMQ_GATEWAY_REQUEST": "The gateway cannot carry out the call: {what}; correct it.",
    "TUBEMQ_GATEWAY_CONFIG": "The setting {setting} of the gateway ({source}) is {value}; it must be {rule}.",
    "TUBEMQ_GATEWAY_CONFIG_UNKNOWN": "The gateway has no setting '{setting}' ({source}); remove it, or correct its name: {known}.",
    "TUBEMQ_GATEWAY_CONFIG_FILE": "The gateway's configuration {path} cannot be read: {cause}; correct it.",
    "TUBEMQ_GATEWAY_POLICY": "The policy {path} of the gateway cannot be used: {cause}; correct it.",
    "TUBEMQ_TOPIC_PARTLY_CREATED": "Topic '{topic}' is on the brokers {brokers}, and the master refuses to create it on {missing}; ask the operator of TubeMQ to complete or remove it.",
    "TUBEMQ_GATEWAY_LOGIN": "The gateway {gateway} does not know who calls: {what}; set tubemq.gateway.token, or show a certificate that its policy names.",
    "TUBEMQ_GATEWAY_FORBIDDEN": "The gateway {gateway} does not allow the client {client} to {what}; ask its operator for the right.",
    "TUBEMQ_GATEWAY_PLAINTEXT": "The gateway {gateway} takes no password over a connection without TLS, where others can read it; reach a gateway that has tls_cert, with tubemq.tls.enabled=true.",
    "TUBEMQ_SESSION_UNKNOWN": "The gateway {gateway} does not know the session {session}; open it there, and repeat the call.",
    "TUBEMQ_SESSION_TAKEN": "The gateway {gateway} has a session {session} that another client opened; give this client an id of its own, or open it with the secret that it was opened with.",
    "TUBEMQ_SESSION_FENCED": "The session {session} of epoch {epoch} has given way to one of epoch {newer}; stop this client, or give it a client id of its own.",
    "TUBEMQ_GATEWAY_ANSWER": "The gateway answered with something unexpected: {what}; check its address and its version.",
    "TUBEMQ_GATEWAY_CREATES_NONE": "The gateway {gateway} creates no topics, and so not {topic}; ask its operator to set master_admin_token, or create the topic with TubeMQ's own tools.",
    "TUBEMQ_GROUP_NOT_FOUND": "The group {group} is not known: it has neither members nor a position at a broker; check its name.",
    "TUBEMQ_GATEWAY_DEADLINE": "The call {method} came to no end within {waited_ms} ms, which was all the time that its client gave it; give it more time, or look at the brokers.",
    "TUBEMQ_GATEWAY_FAILED": "The gateway failed because of a mistake of its own: {cause}; look at its log, and please report this as a bug.",
    "TUBEMQ_GATEWAY_ERROR": "The gateway refuses: {text}; it may be of a newer release than this client.",
    # Options.
    "TUBEMQ_OPTION_UNKNOWN": "Option '{option}' is not known; {advice}",
    "TUBEMQ_OPTION_UNSUPPORTED": "Option '{option}' is one of Spark's Kafka source, and not of this one; {advice}.",
    "TUBEMQ_OPTION_VALUE": "Option '{option}' is '{value}', but must be {expected}.",
    "TUBEMQ_OPTION_OF_CLIENT": "Option '{option}' is about the connection, which is the client's; give it to TubeMQClient.connect or TubeMQClient.from_url.",
    "TUBEMQ_ARROW_READER_CLOSED": "The reader of read_arrow is closed; call read_arrow again to read more.",
    "TUBEMQ_OPTION_MISSING": "Option '{option}' must be specified for {mode}; for example {option}={example}{hint}.",
    "TUBEMQ_OPTION_ALONE": "Option '{option}' is given without '{other}'; give both or neither.",
    "TUBEMQ_OPTION_NEEDED": "Option '{option}' must be specified, since '{other}' needs it.",
    "TUBEMQ_OPTIONS_EXCLUSIVE": "Only one of the options '{option}' and '{other}' can be specified; leave one out.",
    "TUBEMQ_MINIMUM_ABOVE_MAXIMUM": "Option '{option}' is {least}, which is higher than '{other}', {most}; lower the one or raise the other.",
    "TUBEMQ_TIME_TOO_EARLY": "{what} is {ms}, which as milliseconds since 1970 is {date}, before the year 2000. {advice}, or write a time such as {moment}; 0 is the beginning.",
    "TUBEMQ_NOTHING_SUBSCRIBED": "One of the options subscribe, subscribePattern and assign must be specified for {mode}; for example subscribe=demo,orders{hint}.",
    "TUBEMQ_NO_TOPICS": "No topics to subscribe to: the value of option '{option}' is blank; name at least one topic.",
    "TUBEMQ_POSITION_IN_BATCH": "Option '{option}' is {edge} for {whose}, which a batch read does not allow; choose the other end, or offsets.",
    "TUBEMQ_VIEW_IN_STREAM": "Option '{option}' is {view}, but a streaming read only has messages; read the view with spark.read, or leave the option out.",
    "TUBEMQ_LAG_OF_WHAT": "The view 'lag' needs the option 'checkpointLocation' of a streaming query, or 'tubemq.group' of consumers; specify one of them.",
    "TUBEMQ_GROUP_OF_READERS": "The consumer group '{group}' is one of the reader groups ({groups}) too, so reads would take its partitions and move its position; name another group, or other reader groups (in Spark: readerGroups).",
    "TUBEMQ_GROUP_UNKNOWN": "No broker has an offset of the group '{group}'; correct its name (in Spark: tubemq.group), or try again some seconds after its first consumer came.",
    "TUBEMQ_OPTION_IN_VIEW": "Option '{option}' has no effect in {mode}; leave it out.",
    "TUBEMQ_ENDING_IN_STREAM": "Option '{option}' is not valid in a streaming read, which has no end; use the trigger availableNow to stop at what is there now, and its option availableNowUntil to stop before.",
    "TUBEMQ_UNTIL_WITHOUT_AVAILABLE_NOW": "Option '{option}' is the end of a run of the trigger availableNow, and this query has another trigger; use trigger(availableNow=True), or leave the option out.",
    "TUBEMQ_EXACT_IN_STREAM": "Option '{option}' is 'exact', which only a batch read can be: it reads every message there is. A stream that begins at a time leaves out earlier messages with where(\"timestamp >= ...\").",
    # Offsets, as the user or a checkpoint gives them, and records that are gone.
    "TUBEMQ_OFFSET_UNALIGNED": "{offset} of {what} is not an offset; offsets are multiples of {unit} from 0 on, one step per message; {nearest}.",
    "TUBEMQ_NO_RECORD_OF_TIME": "Option '{option}': no record of {partition} is of the time {time} (milliseconds since 1970) or later; choose an earlier time, or set startingOffsetsByTimestampStrategy=latest.",
    "TUBEMQ_NO_MESSAGE_TIME": "Option '{option}' needs messages that carry a time, but no message of {partition} that was looked at carries one. Producers set it: those of tubemq_spark, its commands and df.write do unless they are told otherwise, other clients if they are told to. Name offsets instead.",
    "TUBEMQ_OFFSETS_MALFORMED": "{source} cannot be read: {problem}{seen}; {advice}.",
    "TUBEMQ_OFFSETS_VERSION": "{source} has format version {version}, but this release only reads up to version {supported}; use the release of tubemq_spark that wrote it, or a newer one.",
    "TUBEMQ_OFFSETS_UNKNOWN_PARTITIONS": "Option '{option}' names partitions that do not exist: {unknown}; these exist: {known}. {advice}.",
    "TUBEMQ_OFFSETS_MISSING_PARTITIONS": "Option '{option}' does not name all partitions of the topics; add {missing}, {how}.",
    "TUBEMQ_OFFSET_BEYOND_LOG": "Option '{option}' asks for offset {offset} of {partition}, but its log has offsets from {earliest} to {latest}; choose one of these.",
    "TUBEMQ_OFFSET_NOT_FLUSHED": "Option '{option}' asks for offset {offset} of {partition}, but with visibility=flushed only what is before {flushed} can be read, which is on the broker's disk; try again later, or set visibility=memory.",
    "TUBEMQ_BOUNDS_UNKNOWN": "Option '{option}' cannot be resolved because no broker answered for {partitions}; try again when the brokers are back.",
    "TUBEMQ_BROKERS_AWAY": "{count} of {stores} stores had no answer for {waited_ms} ms, for example {store}: {cause}. A query needs the bounds of all stores when it starts; mend what the cause says, or raise fetchOffset.numRetries.",
    "TUBEMQ_CHECKPOINT_TOPICS": "The checkpoint belongs to a query that also read {topics}, which the option '{option}' no longer names; name them again, or use a new checkpointLocation. To stop reading them, set failOnDataLoss=false for one run.",
    "TUBEMQ_START_AFTER_END": "{partition} would start at offset {start} and end before it, at {end}; choose an earlier start or a later end.",
    "TUBEMQ_CHECKPOINT_STATE": "The query of the checkpoint {checkpoint} keeps state (an aggregation, a join, dropDuplicates), which stands for what it has read: with other offsets, messages would count twice or not at all. Add --drop-state, and the query begins there without state.",
    "TUBEMQ_CHECKPOINT_STATE_OF_SOURCES": "The query of the checkpoint {checkpoint} keeps state and has several sources: without its state it could only begin with its first micro-batch, and its other sources would start over too. Start it with a new checkpointLocation, and startingOffsets.",
    "TUBEMQ_CHECKPOINT_UNREADABLE": "The checkpoint {checkpoint} cannot be read: {problem}; name the checkpointLocation of a query that reads from TubeMQ, as an absolute path or a URI that the driver can reach.",
    "TUBEMQ_DATA_LOSS.EXPIRED": "{partition} is needed from offset {start}, but its log now begins at {end}: retention removed the records in between before they were read. Set failOnDataLoss=false (without Spark: on_loss) to skip them.",
    "TUBEMQ_DATA_LOSS.TRUNCATED": "{partition} is needed up to offset {end}, but its log now ends at {start}: the broker lost or rebuilt its store. Set failOnDataLoss=false (without Spark: on_loss) to skip the lost records.",
    "TUBEMQ_DATA_LOSS.CORRUPT": "{partition} holds damaged records between the offsets {start} and {end}: their checksum or layout is wrong. Set failOnDataLoss=false (without Spark: on_loss) to skip them.",
    "TUBEMQ_DATA_LOSS.SKIPPED": "The broker passed over records of {partition} between the offsets {start} and {end}: their data expired before their index, or cannot be read. Set failOnDataLoss=false (without Spark: on_loss) to continue without them.",
    "TUBEMQ_DATA_LOSS.TOPIC_REMOVED": "The topic of {partition} no longer exists; its records from offset {start} on (planned up to {end}) cannot be read. Restore the topic, or set failOnDataLoss=false (without Spark: on_loss) to continue without it.",
    "TUBEMQ_DATA_LOSS.PARTITION_REMOVED": "{partition} no longer exists; its records from offset {start} on (planned up to {end}) cannot be read. Restore it, or set failOnDataLoss=false (without Spark: on_loss) to continue without it.",
    "TUBEMQ_DATA_LOSS.MOVED_BACK": "{partition} is to be read from offset {end} on, but its log ends at {start}: the topic was created again, its broker lost records, or the offset is wrong. Set failOnDataLoss=false (without Spark: on_loss) to continue from {start}.",
    "TUBEMQ_DATA_LOSS.REPLACED": "{partition} was read up to offset {start} (planned up to {end}), and its log is no longer the one that was read: {evidence}. The topic was created again, its broker lost records or got back older ones, or this is another cluster. Restore it, or set failOnDataLoss=false to read all logs of the topic on that broker from their beginning, which reads again what is in both.",
    # Bodies that are unpacked.
    "TUBEMQ_INLONG_MALFORMED": "{body} is not a sound InLongMsg: {what}. Set mode=PERMISSIVE to get such bodies in the column _corrupt_record, or payload=raw to read all bodies as they are.",
    "TUBEMQ_INLONG_TOO_MUCH": "{count} bodies of one Arrow batch unpack to 2 GiB or more; lower spark.sql.execution.arrow.maxRecordsPerBatch.",
    # Runs of Trigger.AvailableNow.
    "TUBEMQ_AVAILABLE_NOW.PARTITION_LOST": "{partition} was there when this run of Trigger.AvailableNow began, which was to read it up to offset {end}, and no longer exists. Start the query again: it then plans with what there is, and failOnDataLoss decides about what is gone.",
    "TUBEMQ_AVAILABLE_NOW.MOVED_BACK": "{partition} was to be read up to offset {end}, where it ended when this run of Trigger.AvailableNow began, but its log now ends at {start}: the topic was created again, or its broker lost records. Start the query again: it then plans with what there is, and failOnDataLoss decides about what is gone.",
    # Metrics.
    "TUBEMQ_NO_PROMETHEUS": "Metrics need the package prometheus_client, which is not installed; run: pip install 'tubemq_spark[prometheus]'.",
    # The ledger of losses.
    "TUBEMQ_FOLDER_UNUSABLE": "The folder {folder} of option '{option}' cannot be {done}: {cause}; mend that, or name one that the driver and all executors can reach and write to.",
    "TUBEMQ_FOLDER_UNUSABLE.FULL": "The folder {folder} of option '{option}' cannot be {done}, because no space is left: {cause}; free some space, or name a folder elsewhere that the driver and all executors can reach.",
    "TUBEMQ_FOLDER_UNRELATED": "The folder {folder} has no file that the option '{option}' writes, but others, such as {example}; name the folder that the queries were given.",
    "TUBEMQ_LEDGER_MALFORMED": "{source} is not a ledger of losses: {problem}; name a folder that holds nothing else in the option 'lossLedger', or move the file away.",
    # Manifests of what was written.
    "TUBEMQ_MANIFEST_MALFORMED": "{source} is not a manifest of a write: {problem}; name a folder that holds nothing else in the option 'receiptsPath', or move the file away.",
    "TUBEMQ_REPLAY_DIFFERS": "Before, {micro_batch} was written with {written}, and now it has {found}: what it has now was not sent. If the checkpoint was restored or its query changed, move {manifest} away to send these rows, or name a new folder in the option 'receiptsPath'; if the query does not give the same rows each time, set onReplayDiffers=keep.",
    # The demo.
    "TUBEMQ_DEMO_NO_SPARK": "PySpark is not installed for {python}; run: pip install 'tubemq_spark[spark]'.",
    "TUBEMQ_DEMO_INPUT": "There is nothing to publish: {path} {problem}; name files or directories that contain text.",
    "TUBEMQ_DEMO_ONE_TOPIC": "Lines and counts cannot share the topic {topic}; name two different topics.",
    "TUBEMQ_DEMO_NO_TOPIC": "The topic {topic} does not exist; create it: tubemq-spark topics create {topic} --stores 3 --token-file <file> --master <master>.",
    "TUBEMQ_DEMO_SPARK": "Spark failed: {cause}; its log is {log}.",
    "TUBEMQ_DEMO_STALLED": "The query has not finished a micro-batch for {seconds} s; check Spark's log, and that the brokers answer.",
    "TUBEMQ_DEMO_FAULTS": "The results are wrong: {faults}; please report this as a bug.",
}


class TubeMQError(Exception):
    """Base of every error this package raises.

    ``condition`` is a key of ``CONDITIONS``, ``parameters`` the values its text was made from,
    ``retriable`` whether doing the same again may succeed.
    """

    retriable: bool = False
    about: str = ""
    """Which row it is about, if the text does not say that."""
    row: int | None = None
    """Which message of a batch it is about, counted from 0, if that alone cannot be sent; those before it were
    accepted."""

    def __init__(self, condition: str, /, **parameters: object) -> None:
        self.condition = condition
        self.parameters: dict[str, Any] = {name: _plain(value) for name, value in parameters.items()}
        super().__init__(f"[{condition}] {CONDITIONS[condition].format(**self.parameters)}")

    def __str__(self) -> str:
        """Return the whole text."""
        return f"{super().__str__()} (row {self.about})" if self.about else super().__str__()

    def __reduce__(self) -> tuple[Any, ...]:
        # The third item is what instances may carry beyond their parameters: retriable, notes.
        return _restore, (type(self), self.condition, self.parameters), self.__dict__

    @classmethod
    def _restored(cls, condition: str, parameters: dict[str, Any]) -> Self:
        return cls(condition, **parameters)


class OptionError(TubeMQError, ValueError):
    """The user's options, or the columns of the user's DataFrame, are wrong: fix them and run again."""


class TubeMQConnectionError(TubeMQError, ConnectionError):
    """A peer could not be reached, or the connection to it was lost."""

    retriable = True


class TlsError(TubeMQConnectionError):
    """This client and a peer do not agree on TLS: its certificate, ours, the versions or the port do not fit."""

    retriable = False


class TubeMQTimeoutError(TubeMQError, TimeoutError):
    """A deadline passed; the text says which step."""

    retriable = True


class RpcError(TubeMQError):
    """A peer answered with a result code other than success; ``code`` is that code."""

    @property
    def code(self) -> int:
        """TubeMQ's result code (``protocol.errcodes``); 0 when the peer sent none."""
        return int(self.parameters.get("code", 0))


class AdminError(TubeMQError):
    """A server refused an administration call, or one item of it."""

    @property
    def code(self) -> int:
        """The refusal's ``errCode``; -1 when the server sent none."""
        code = self.parameters["code"]
        return code if isinstance(code, int) else -1

    @property
    def reason(self) -> str:
        """The server's own words."""
        return str(self.parameters["reason"])


class ProtocolError(TubeMQError):
    """The wire protocol was broken."""


class LocalProtocolError(ProtocolError):
    """This side broke the protocol: a bug of ours."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol; the connection cannot be used any more."""


class HttpAnswerError(RemoteProtocolError):
    """The peer is an HTTP server, so its address is not that of a TubeMQ port."""


class InLongMsgError(TubeMQError, ValueError):
    """A body is not an InLongMsg, the container of InLong, or a damaged one; the text says how."""


class DataLossError(TubeMQError):
    """Records that should be read are gone or damaged; the text names the option that tolerates it."""


class OffsetFormatError(TubeMQError, ValueError):
    """Offsets (of an option or of a checkpoint) that cannot be understood."""


class FolderError(TubeMQError, OSError):
    """A folder that the user named cannot be written to or read, although that was tried several times."""


class LedgerFormatError(TubeMQError, ValueError):
    """A file that should be a ledger of losses cannot be understood."""


class ManifestFormatError(TubeMQError, ValueError):
    """A file that should be a manifest of a write cannot be understood."""


class ReplayError(TubeMQError):
    """A micro-batch that was written before has other rows now."""


class ConsumeError(TubeMQError):
    """A consumer refuses a call by itself; ``code`` is the result code that TubeMQ's clients give for it."""

    @property
    def code(self) -> int:
        """TubeMQ's result code (``protocol.errcodes``)."""
        return int(self.parameters["code"])


_PASSING_REFUSALS: Final = frozenset(
    {"TUBEMQ_GATEWAY_BUSY", "TUBEMQ_GATEWAY_DRAINING", "TUBEMQ_GATEWAY_DEADLINE"}
)


class GatewayError(TubeMQError):
    """A gateway refuses a call by itself, without asking TubeMQ."""

    def __init__(self, condition: str, /, **parameters: object) -> None:
        super().__init__(condition, **parameters)
        self.retriable = condition in _PASSING_REFUSALS


class ProduceError(TubeMQError):
    """A message could not be stored; the text names the topic and the partition."""

    @property
    def may_be_stored(self) -> bool:
        """Whether the message may be stored all the same: an attempt to send it had no answer."""
        return bool(self.parameters.get("unanswered"))


_FULL: Final = ("no space left", "quota exceeded", "quotaexceeded")


def tells_of_full_disk(cause: object) -> bool:
    """Tell whether an error, or the text of one, is about a disk or a folder that has no room."""
    text = str(cause).lower()
    return any(words in text for words in _FULL)


def _restore(cls: type[TubeMQError], condition: str, parameters: dict[str, Any]) -> TubeMQError:
    return cls._restored(condition, parameters)


def _plain(value: object) -> object:
    """Keep what pickles anywhere; everything else as its text, which a cause continues the sentence with."""
    if isinstance(value, TubeMQError):
        return str(value).rstrip(".")
    return value if isinstance(value, str | int | float | bool | None) else str(value)
