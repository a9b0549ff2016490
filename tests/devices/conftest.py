"""Real containers for attachments: the containerd of the contract tests."""

from tests.contract.conftest import containerd_bench as containerd_bench
from tests.contract.conftest import netns as netns
from tests.contract.conftest import private_containerd as private_containerd
