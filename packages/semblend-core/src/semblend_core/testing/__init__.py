"""What a provider or an adapter is tested with.

``semblend_core.testing.conformance`` holds the published suite (it needs pytest: extra ``testing``); the engine model,
the reference provider and the fault vocabulary here need nothing beyond core.
"""

from semblend_core.testing.for_adapters import apart, divergence, passage
from semblend_core.testing.growth import BOUNDS_OF_BOOKS, grown, held_by
from semblend_core.testing.killable import KillableServer, redis_server
from semblend_core.testing.latent_model import write_latent_model
from semblend_core.testing.lines import Lines
from semblend_core.testing.listening import listen_to
from semblend_core.testing.programs import run_program, write_findings
from semblend_core.testing.reference_provider import ReferenceProvider
from semblend_core.testing.shallow_model import shallow_model_folder
from semblend_core.testing.split_model import write_split_model
from semblend_core.testing.store_faults import STORE_FAULTS, open_files
from semblend_core.testing.subject import Fault, Served, Subject
from semblend_core.testing.token_engine import TokenEngine
from semblend_core.testing.traces import Marker, found_in_files, found_in_memory
from semblend_core.testing.two_rotations_model import write_two_rotations_model
from semblend_core.testing.vision_model import read_images_without_torchvision, some_image, write_vision_model
from semblend_core.testing.waiting import records_so_far, wait_until

__all__ = [
    "BOUNDS_OF_BOOKS",
    "STORE_FAULTS",
    "Fault",
    "KillableServer",
    "Lines",
    "Marker",
    "ReferenceProvider",
    "Served",
    "Subject",
    "TokenEngine",
    "apart",
    "divergence",
    "found_in_files",
    "found_in_memory",
    "grown",
    "held_by",
    "listen_to",
    "open_files",
    "passage",
    "read_images_without_torchvision",
    "records_so_far",
    "redis_server",
    "run_program",
    "shallow_model_folder",
    "some_image",
    "wait_until",
    "write_findings",
    "write_latent_model",
    "write_split_model",
    "write_two_rotations_model",
    "write_vision_model",
]
