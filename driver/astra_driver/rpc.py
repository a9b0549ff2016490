"""
From a service of our protos and an object with its methods to what grpc serves; and from our errors to the statuses
that Nomad understands. Here, once for all methods, a mistake of ours becomes an error and never a wrong answer.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from astra_agent.errors import AstraError, Conflict, HostFault, InvalidRequest, NotFound, Stale
from astra_driver.proto.status_pb2 import RichStatus
from astra_driver.proto.structs_pb2 import RecoverableError

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

# Never UNAVAILABLE or CANCELLED: Nomad takes them for the plugin's own death.
_CODES: dict[type[AstraError], grpc.StatusCode] = {
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    NotFound: grpc.StatusCode.NOT_FOUND,
    Conflict: grpc.StatusCode.ALREADY_EXISTS,
    Stale: grpc.StatusCode.ABORTED,
    HostFault: grpc.StatusCode.FAILED_PRECONDITION,
}
_RECOVERABLE = "type.googleapis.com/hashicorp.nomad.plugins.shared.structs.RecoverableError"


class Recoverable(Exception):
    """The task did not start, and may as it is in a while: the job's restart policy says when."""


def service(
    descriptor: ServiceDescriptor, servicer: object, called: Callable[[], None]
) -> grpc.GenericRpcHandler[Any, Any]:
    """
    Args:
        servicer: Has a method `start_task` for each StartTask that it serves; the others are unimplemented.
        called: Is told of every call.
    """
    handlers = {}
    for method in descriptor.methods:
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", method.name).lower()
        if (function := getattr(servicer, name, None)) is not None:
            handlers[method.name] = _handler(method, function, called)
    return grpc.method_handlers_generic_handler(descriptor.full_name, handlers)


def _handler(method: MethodDescriptor, function: Any, called: Callable[[], None]) -> grpc.RpcMethodHandler[Any, Any]:
    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[(method.client_streaming, method.server_streaming)]
    guard = _guarded_stream if method.server_streaming else _guarded
    return make(
        guard(function, called),
        request_deserializer=GetMessageClass(method.input_type).FromString,
        response_serializer=GetMessageClass(method.output_type).SerializeToString,
    )


def _guarded(function: Callable[[Any, Context], Awaitable[Any]], called: Callable[[], None]) -> Any:
    @functools.wraps(function)
    async def answer(request: Any, context: Context) -> Any:
        called()
        try:
            return await function(request, context)
        except (AstraError, Recoverable) as error:
            await abort(context, error)
        except Exception as error:  # noqa: BLE001 -- the text of a bug must reach the user as one
            await _abort_for_bug(context, function.__name__, error)

    return answer


def _guarded_stream(function: Callable[[Any, Context], AsyncIterator[Any]], called: Callable[[], None]) -> Any:
    @functools.wraps(function)
    async def answer(request: Any, context: Context) -> AsyncIterator[Any]:
        called()
        try:
            async for message in function(request, context):
                yield message
        except (AstraError, Recoverable) as error:
            await abort(context, error)
        except Exception as error:  # noqa: BLE001 -- the text of a bug must reach the user as one
            await _abort_for_bug(context, function.__name__, error)

    return answer


async def abort(context: Context, error: AstraError | Recoverable) -> NoReturn:
    if isinstance(error, Recoverable):
        code = grpc.StatusCode.FAILED_PRECONDITION
        detail = AnyMessage(type_url=_RECOVERABLE, value=RecoverableError(recoverable=True).SerializeToString())
        status = RichStatus(code=code.value[0], message=str(error), details=[detail])
        trailer = (("grpc-status-details-bin", status.SerializeToString()),)
        await context.abort(code, str(error), trailer)
    code = next((_CODES[cls] for cls in type(error).__mro__ if cls in _CODES), grpc.StatusCode.FAILED_PRECONDITION)
    await context.abort(code, str(error))


async def _abort_for_bug(context: Context, name: str, error: Exception) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    log.error("call_failed call=%s", name, exc_info=error)
    await context.abort(grpc.StatusCode.INTERNAL, f"a mistake in the plugin, {type(error).__name__}: {error}")
