"""All names, for editors and type checkers: `python -m experiments.catalogue --write` makes this file."""

from posjax.encodings.additive import Fourier as fourier
from posjax.encodings.additive import ScaledSinusoidal as scaled_sinusoidal
from posjax.encodings.additive import Sincos2dBigVision as sincos2d_big_vision
from posjax.encodings.additive import Sincos2dMae as sincos2d_mae
from posjax.encodings.additive import Sinusoidal as sinusoidal
from posjax.encodings.bias import Alibi as alibi
from posjax.encodings.bias import AlibiPi as alibi_pi
from posjax.encodings.bias import Bam as bam
from posjax.encodings.bias import Kerple as kerple
from posjax.encodings.bias import Sandwich as sandwich
from posjax.encodings.bias import T5 as t5
from posjax.encodings.bias_grid import Beit as beit
from posjax.encodings.bias_grid import LookHere as lookhere
from posjax.encodings.bias_grid import Swin as swin
from posjax.encodings.bias_network import Dape as dape
from posjax.encodings.bias_network import Dpb as dpb
from posjax.encodings.bias_network import Fire as fire
from posjax.encodings.bias_network import SwinV2 as swin_v2
from posjax.encodings.cameras import Gta as gta
from posjax.encodings.cameras import Plucker as plucker
from posjax.encodings.cameras import Prope as prope
from posjax.encodings.cameras import RayRope as rayrope
from posjax.encodings.contextual import CoPE as cope
from posjax.encodings.contextual import Inkling as inkling
from posjax.encodings.contextual import Shaw as shaw
from posjax.encodings.contextual import TransformerXL as transformer_xl
from posjax.encodings.convolution import Peg as peg
from posjax.encodings.digits import Abacus as abacus
from posjax.encodings.digits import PositionCoupling as position_coupling
from posjax.encodings.disentangled import Deberta as deberta
from posjax.encodings.disentangled import Tupe as tupe
from posjax.encodings.gates import CaRope as carope
from posjax.encodings.gates import Cable as cable
from posjax.encodings.gates import DataDependentAlibi as data_dependent_alibi
from posjax.encodings.gates import Fox as fox
from posjax.encodings.gates import PerRowAlibi as per_row_alibi
from posjax.encodings.gates import SelectiveRope as selective_rope
from posjax.encodings.grape import GrapeA as grape_a
from posjax.encodings.grape import GrapeAP as grape_ap
from posjax.encodings.grape import GrapeM as grape_m
from posjax.encodings.graphs import Centrality as centrality
from posjax.encodings.graphs import Graphormer as graphormer
from posjax.encodings.graphs import Laplacian as laplacian
from posjax.encodings.graphs import RandomWalk as random_walk
from posjax.encodings.graphs import Tree as tree
from posjax.encodings.masks import BigBird as bigbird
from posjax.encodings.masks import Chunked as chunked
from posjax.encodings.masks import Dilated as dilated
from posjax.encodings.masks import Longformer as longformer
from posjax.encodings.masks import Sinks as sinks
from posjax.encodings.masks import Window as window
from posjax.encodings.no_position import NoPE as none
from posjax.encodings.parabolas import Pape as pape
from posjax.encodings.parabolas import PapeRi as pape_ri
from posjax.encodings.path_attention import PaTH as path
from posjax.encodings.patterns import Beam as beam
from posjax.encodings.patterns import Gemma4 as gemma4
from posjax.encodings.patterns import GptOss as gpt_oss
from posjax.encodings.patterns import Laguna as laguna
from posjax.encodings.patterns import Lfm3 as lfm3
from posjax.encodings.patterns import MistralLarge4 as mistral_large4
from posjax.encodings.patterns import Muse as muse
from posjax.encodings.patterns import RNope as rnope
from posjax.encodings.patterns import Swan as swan
from posjax.encodings.placement import Axis as axis
from posjax.encodings.placement import FitGrid as fit_grid
from posjax.encodings.placement import Interpolate as interpolate
from posjax.encodings.placement import Raster as raster
from posjax.encodings.placement import Reset as reset
from posjax.encodings.placement import Unpad as unpad
from posjax.encodings.randomizing import Cape as cape
from posjax.encodings.randomizing import Pose as pose
from posjax.encodings.randomizing import RandomFloat as random_float
from posjax.encodings.randomizing import Randomized as randomized
from posjax.encodings.randomizing import Shape as shape
from posjax.encodings.rotary import Hope as hope
from posjax.encodings.rotary import PRope as p_rope
from posjax.encodings.rotary import Rope as rope
from posjax.encodings.rotary import ValueRotary as value_rotary
from posjax.encodings.rotary_generalised import FoPE as fope
from posjax.encodings.rotary_generalised import RopePP as rope_pp
from posjax.encodings.rotary_generalised import XPos as xpos
from posjax.encodings.rotary_grid import AxialRope as axial_rope
from posjax.encodings.rotary_grid import DinoV3 as dinov3
from posjax.encodings.rotary_grid import GoldenRope as golden_rope
from posjax.encodings.rotary_grid import MHRope as mhrope
from posjax.encodings.rotary_grid import MRope as mrope
from posjax.encodings.rotary_grid import PixelRope as pixel_rope
from posjax.encodings.rotary_grid import RegisterRope as register_rope
from posjax.encodings.rotary_groups import CayleyString as cayley_string
from posjax.encodings.rotary_groups import CirculantString as circulant_string
from posjax.encodings.rotary_groups import ComRoPE as comrope
from posjax.encodings.rotary_groups import HARoPE as harope
from posjax.encodings.rotary_groups import SphericalRope as spherical_rope
from posjax.encodings.rotary_learned import CompassRope as compass_rope
from posjax.encodings.rotary_learned import LeRope as lerope
from posjax.encodings.rotary_learned import LieRE as liere
from posjax.encodings.rotary_learned import PoPE as pope
from posjax.encodings.rotary_learned import RePo as repo
from posjax.encodings.rotary_learned import RopeMixed as rope_mixed
from posjax.encodings.scalings import Clipped as clipped
from posjax.encodings.scalings import Dype as dype
from posjax.encodings.scalings import Linear as linear
from posjax.encodings.scalings import Llama3 as llama3
from posjax.encodings.scalings import Ntk as ntk
from posjax.encodings.scalings import NtkByParts as ntk_by_parts
from posjax.encodings.scalings import Resonance as resonance
from posjax.encodings.scalings import Riflex as riflex
from posjax.encodings.scalings import Yarn as yarn
from posjax.encodings.scalings_by_length import DynamicNtk as dynamic_ntk
from posjax.encodings.scalings_by_length import DynamicYarn as dynamic_yarn
from posjax.encodings.scalings_by_length import LongRope as longrope
from posjax.encodings.stick_breaking_attention import StickBreaking as stick_breaking
from posjax.encodings.tables import Learned as learned
from posjax.encodings.tables import LearnedFactorized as learned_factorized
from posjax.encodings.temperature import LearnedSink as learned_sink
from posjax.encodings.temperature import Llama4Temperature as llama4_temperature
from posjax.encodings.temperature import LogN as log_n
from posjax.encodings.temperature import PowerTemperature as power_temperature
from posjax.encodings.temperature import SSMax as ssmax
from posjax.encodings.temperature import TokenSink as token_sink
from posjax.encodings.token_aware_phase import Tapa as tapa
from posjax.encodings.views import DualChunk as dual_chunk
from posjax.encodings.views import ReRope as rerope
from posjax.encodings.views import SelfExtend as self_extend
from posjax.encodings.views import Shifted as shifted
from posjax.encodings.views import Streaming as streaming

__all__ = [
    "abacus",
    "alibi",
    "alibi_pi",
    "axial_rope",
    "axis",
    "bam",
    "beam",
    "beit",
    "bigbird",
    "cable",
    "cape",
    "carope",
    "cayley_string",
    "centrality",
    "chunked",
    "circulant_string",
    "clipped",
    "compass_rope",
    "comrope",
    "cope",
    "dape",
    "data_dependent_alibi",
    "deberta",
    "dilated",
    "dinov3",
    "dpb",
    "dual_chunk",
    "dynamic_ntk",
    "dynamic_yarn",
    "dype",
    "fire",
    "fit_grid",
    "fope",
    "fourier",
    "fox",
    "gemma4",
    "golden_rope",
    "gpt_oss",
    "grape_a",
    "grape_ap",
    "grape_m",
    "graphormer",
    "gta",
    "harope",
    "hope",
    "inkling",
    "interpolate",
    "kerple",
    "laguna",
    "laplacian",
    "learned",
    "learned_factorized",
    "learned_sink",
    "lerope",
    "lfm3",
    "liere",
    "linear",
    "llama3",
    "llama4_temperature",
    "log_n",
    "longformer",
    "longrope",
    "lookhere",
    "mhrope",
    "mistral_large4",
    "mrope",
    "muse",
    "none",
    "ntk",
    "ntk_by_parts",
    "p_rope",
    "pape",
    "pape_ri",
    "path",
    "peg",
    "per_row_alibi",
    "pixel_rope",
    "plucker",
    "pope",
    "pose",
    "position_coupling",
    "power_temperature",
    "prope",
    "random_float",
    "random_walk",
    "randomized",
    "raster",
    "rayrope",
    "register_rope",
    "repo",
    "rerope",
    "reset",
    "resonance",
    "riflex",
    "rnope",
    "rope",
    "rope_mixed",
    "rope_pp",
    "sandwich",
    "scaled_sinusoidal",
    "selective_rope",
    "self_extend",
    "shape",
    "shaw",
    "shifted",
    "sincos2d_big_vision",
    "sincos2d_mae",
    "sinks",
    "sinusoidal",
    "spherical_rope",
    "ssmax",
    "stick_breaking",
    "streaming",
    "swan",
    "swin",
    "swin_v2",
    "t5",
    "tapa",
    "token_sink",
    "transformer_xl",
    "tree",
    "tupe",
    "unpad",
    "value_rotary",
    "window",
    "xpos",
    "yarn",
]
