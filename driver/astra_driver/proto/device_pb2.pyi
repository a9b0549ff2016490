import datetime

from astra_driver.proto import structs_pb2 as _structs_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FingerprintRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FingerprintResponse(_message.Message):
    __slots__ = ("device_group",)
    DEVICE_GROUP_FIELD_NUMBER: _ClassVar[int]
    device_group: _containers.RepeatedCompositeFieldContainer[DeviceGroup]
    def __init__(self, device_group: _Optional[_Iterable[_Union[DeviceGroup, _Mapping]]] = ...) -> None: ...

class DeviceGroup(_message.Message):
    __slots__ = ("vendor", "device_type", "device_name", "devices", "attributes")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _structs_pb2.Attribute
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_structs_pb2.Attribute, _Mapping]] = ...) -> None: ...
    VENDOR_FIELD_NUMBER: _ClassVar[int]
    DEVICE_TYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    vendor: str
    device_type: str
    device_name: str
    devices: _containers.RepeatedCompositeFieldContainer[DetectedDevice]
    attributes: _containers.MessageMap[str, _structs_pb2.Attribute]
    def __init__(self, vendor: _Optional[str] = ..., device_type: _Optional[str] = ..., device_name: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[DetectedDevice, _Mapping]]] = ..., attributes: _Optional[_Mapping[str, _structs_pb2.Attribute]] = ...) -> None: ...

class DetectedDevice(_message.Message):
    __slots__ = ("ID", "healthy", "health_description", "hw_locality")
    ID_FIELD_NUMBER: _ClassVar[int]
    HEALTHY_FIELD_NUMBER: _ClassVar[int]
    HEALTH_DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    HW_LOCALITY_FIELD_NUMBER: _ClassVar[int]
    ID: str
    healthy: bool
    health_description: str
    hw_locality: DeviceLocality
    def __init__(self, ID: _Optional[str] = ..., healthy: _Optional[bool] = ..., health_description: _Optional[str] = ..., hw_locality: _Optional[_Union[DeviceLocality, _Mapping]] = ...) -> None: ...

class DeviceLocality(_message.Message):
    __slots__ = ("pci_bus_id",)
    PCI_BUS_ID_FIELD_NUMBER: _ClassVar[int]
    pci_bus_id: str
    def __init__(self, pci_bus_id: _Optional[str] = ...) -> None: ...

class ReserveRequest(_message.Message):
    __slots__ = ("device_ids",)
    DEVICE_IDS_FIELD_NUMBER: _ClassVar[int]
    device_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, device_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ReserveResponse(_message.Message):
    __slots__ = ("container_res",)
    CONTAINER_RES_FIELD_NUMBER: _ClassVar[int]
    container_res: ContainerReservation
    def __init__(self, container_res: _Optional[_Union[ContainerReservation, _Mapping]] = ...) -> None: ...

class ContainerReservation(_message.Message):
    __slots__ = ("envs",)
    class EnvsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ENVS_FIELD_NUMBER: _ClassVar[int]
    envs: _containers.ScalarMap[str, str]
    def __init__(self, envs: _Optional[_Mapping[str, str]] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ("collection_interval",)
    COLLECTION_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    collection_interval: _duration_pb2.Duration
    def __init__(self, collection_interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class StatsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
