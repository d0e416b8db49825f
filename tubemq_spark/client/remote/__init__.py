"""Which settings of a client make sense when it goes through gateways; loads no gRPC."""

from tubemq_spark.client.config import BuiltInPartitioner, ClientConfig, bad_partitioner
from tubemq_spark.errors import OptionError
from tubemq_spark.net.tls import TlsVersion


def check_access(client: ClientConfig, token: str | None) -> None:
    """Refuse what has no meaning through a gateway, or would be sent in the clear."""
    if not isinstance(client.partitioner, BuiltInPartitioner):
        raise bad_partitioner(client.partitioner)
    # The gateway logs in with it, so it gets the password itself and not a signature made with it.
    if client.tls is None and client.password is not None:
        raise OptionError("TUBEMQ_OPTION_NEEDED", option="tubemq.tls.enabled", other="tubemq.password")
    if client.tls is None:
        if token is not None:
            raise OptionError(
                "TUBEMQ_OPTION_NEEDED", option="tubemq.tls.enabled", other="tubemq.gateway.token"
            )
        return
    if client.tls.key_password is not None:
        expected = "left out with gateways, whose connections need a key that is not encrypted"
        raise OptionError(
            "TUBEMQ_OPTION_VALUE", option="tubemq.tls.keyPassword", value="given", expected=expected
        )
    if client.tls.min_version is not TlsVersion.V1_2:
        # gRPC has no such limit. With a gateway that knows 1.3 it speaks that.
        expected = "TLSv1.2 with gateways, whose connections cannot refuse it; refuse it at the gateway"
        value = client.tls.min_version.value
        raise OptionError(
            "TUBEMQ_OPTION_VALUE", option="tubemq.tls.minVersion", value=value, expected=expected
        )
