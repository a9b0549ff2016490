"""
The calls of containerd that we make, typed: one line each, checked against the protos by a test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message

from astra_agent.containerd.proto import (
    containers_pb2,
    content_pb2,
    diff_pb2,
    health_pb2,
    images_pb2,
    introspection_pb2,
    leases_pb2,
    namespaces_pb2,
    sandbox_pb2,
    snapshots_pb2,
    tasks_pb2,
    version_pb2,
)

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[Q, R]):
    """A method of a service, by its path on the wire."""

    path: str
    request: type[Q]
    answer: type[R]


@dataclass(frozen=True, slots=True)
class Unary(Method[Q, R]):
    """One request, one answer."""


@dataclass(frozen=True, slots=True)
class Download(Method[Q, R]):
    """One request, a stream of answers."""


@dataclass(frozen=True, slots=True)
class Dialogue(Method[Q, R]):
    """Streams both ways."""


VERSION = Unary("/containerd.services.version.v1.Version/Version", Empty, version_pb2.VersionResponse)
HEALTH = Unary("/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse)

_INTROSPECTION = "/containerd.services.introspection.v1.Introspection"
PLUGINS = Unary(f"{_INTROSPECTION}/Plugins", introspection_pb2.PluginsRequest, introspection_pb2.PluginsResponse)
SERVER = Unary(f"{_INTROSPECTION}/Server", Empty, introspection_pb2.ServerResponse)

NAMESPACE_CREATE = Unary(
    "/containerd.services.namespaces.v1.Namespaces/Create",
    namespaces_pb2.CreateNamespaceRequest,
    namespaces_pb2.CreateNamespaceResponse,
)

_LEASES = "/containerd.services.leases.v1.Leases"
LEASE_CREATE = Unary(f"{_LEASES}/Create", leases_pb2.CreateRequest, leases_pb2.CreateResponse)
LEASE_DELETE = Unary(f"{_LEASES}/Delete", leases_pb2.DeleteRequest, Empty)
LEASE_LIST = Unary(f"{_LEASES}/List", leases_pb2.ListRequest, leases_pb2.ListResponse)

_CONTENT = "/containerd.services.content.v1.Content"
CONTENT_INFO = Unary(f"{_CONTENT}/Info", content_pb2.InfoRequest, content_pb2.InfoResponse)
CONTENT_UPDATE = Unary(f"{_CONTENT}/Update", content_pb2.UpdateRequest, content_pb2.UpdateResponse)
CONTENT_DELETE = Unary(f"{_CONTENT}/Delete", content_pb2.DeleteContentRequest, Empty)
CONTENT_READ = Download(f"{_CONTENT}/Read", content_pb2.ReadContentRequest, content_pb2.ReadContentResponse)
CONTENT_STATUSES = Unary(f"{_CONTENT}/ListStatuses", content_pb2.ListStatusesRequest, content_pb2.ListStatusesResponse)
CONTENT_WRITE = Dialogue(f"{_CONTENT}/Write", content_pb2.WriteContentRequest, content_pb2.WriteContentResponse)
CONTENT_ABORT = Unary(f"{_CONTENT}/Abort", content_pb2.AbortRequest, Empty)

_IMAGES = "/containerd.services.images.v1.Images"
IMAGE_GET = Unary(f"{_IMAGES}/Get", images_pb2.GetImageRequest, images_pb2.GetImageResponse)
IMAGE_LIST = Unary(f"{_IMAGES}/List", images_pb2.ListImagesRequest, images_pb2.ListImagesResponse)
IMAGE_CREATE = Unary(f"{_IMAGES}/Create", images_pb2.CreateImageRequest, images_pb2.CreateImageResponse)
IMAGE_UPDATE = Unary(f"{_IMAGES}/Update", images_pb2.UpdateImageRequest, images_pb2.UpdateImageResponse)
IMAGE_DELETE = Unary(f"{_IMAGES}/Delete", images_pb2.DeleteImageRequest, Empty)

DIFF_APPLY = Unary("/containerd.services.diff.v1.Diff/Apply", diff_pb2.ApplyRequest, diff_pb2.ApplyResponse)

_SNAPSHOTS = "/containerd.services.snapshots.v1.Snapshots"
SNAPSHOT_PREPARE = Unary(
    f"{_SNAPSHOTS}/Prepare", snapshots_pb2.PrepareSnapshotRequest, snapshots_pb2.PrepareSnapshotResponse
)
SNAPSHOT_VIEW = Unary(f"{_SNAPSHOTS}/View", snapshots_pb2.ViewSnapshotRequest, snapshots_pb2.ViewSnapshotResponse)
SNAPSHOT_MOUNTS = Unary(f"{_SNAPSHOTS}/Mounts", snapshots_pb2.MountsRequest, snapshots_pb2.MountsResponse)
SNAPSHOT_COMMIT = Unary(f"{_SNAPSHOTS}/Commit", snapshots_pb2.CommitSnapshotRequest, Empty)
SNAPSHOT_REMOVE = Unary(f"{_SNAPSHOTS}/Remove", snapshots_pb2.RemoveSnapshotRequest, Empty)
SNAPSHOT_STAT = Unary(f"{_SNAPSHOTS}/Stat", snapshots_pb2.StatSnapshotRequest, snapshots_pb2.StatSnapshotResponse)

_CONTAINERS = "/containerd.services.containers.v1.Containers"
CONTAINER_GET = Unary(f"{_CONTAINERS}/Get", containers_pb2.GetContainerRequest, containers_pb2.GetContainerResponse)
CONTAINER_LIST = Unary(
    f"{_CONTAINERS}/List", containers_pb2.ListContainersRequest, containers_pb2.ListContainersResponse
)
CONTAINER_CREATE = Unary(
    f"{_CONTAINERS}/Create", containers_pb2.CreateContainerRequest, containers_pb2.CreateContainerResponse
)
CONTAINER_DELETE = Unary(f"{_CONTAINERS}/Delete", containers_pb2.DeleteContainerRequest, Empty)

_TASKS = "/containerd.services.tasks.v1.Tasks"
TASK_CREATE = Unary(f"{_TASKS}/Create", tasks_pb2.CreateTaskRequest, tasks_pb2.CreateTaskResponse)
TASK_START = Unary(f"{_TASKS}/Start", tasks_pb2.StartRequest, tasks_pb2.StartResponse)
TASK_DELETE = Unary(f"{_TASKS}/Delete", tasks_pb2.DeleteTaskRequest, tasks_pb2.DeleteResponse)
TASK_GET = Unary(f"{_TASKS}/Get", tasks_pb2.GetRequest, tasks_pb2.GetResponse)
TASK_LIST = Unary(f"{_TASKS}/List", tasks_pb2.ListTasksRequest, tasks_pb2.ListTasksResponse)
TASK_KILL = Unary(f"{_TASKS}/Kill", tasks_pb2.KillRequest, Empty)
TASK_WAIT = Unary(f"{_TASKS}/Wait", tasks_pb2.WaitRequest, tasks_pb2.WaitResponse)
EXEC_CREATE = Unary(f"{_TASKS}/Exec", tasks_pb2.ExecProcessRequest, Empty)
EXEC_DELETE = Unary(f"{_TASKS}/DeleteProcess", tasks_pb2.DeleteProcessRequest, tasks_pb2.DeleteResponse)
EXEC_RESIZE = Unary(f"{_TASKS}/ResizePty", tasks_pb2.ResizePtyRequest, Empty)
EXEC_CLOSE_STDIN = Unary(f"{_TASKS}/CloseIO", tasks_pb2.CloseIORequest, Empty)

_STORE = "/containerd.services.sandbox.v1.Store"
SANDBOX_CREATE = Unary(f"{_STORE}/Create", sandbox_pb2.StoreCreateRequest, sandbox_pb2.StoreCreateResponse)
SANDBOX_DELETE = Unary(f"{_STORE}/Delete", sandbox_pb2.StoreDeleteRequest, sandbox_pb2.StoreDeleteResponse)
