"""The networks of ``networks.py``: how each is built with random weights, and what it takes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # every network begins at random: nothing is downloaded

import network_modules as own
import timm
import torch
import torchvision
import transformers
from torch import Tensor, nn

CLASSES = own.CLASSES
BATCH = 4


@dataclass(frozen=True)
class Network:
    """A network, its inputs for ``BATCH`` rows, and what is measured.

    ``training``: also in training mode, with the statistics of minibatches. ``classic``: also by the classic exporter.
    ``real``: of the size at which it is used: a single step, and its memory.
    """

    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    training: bool = False
    classic: bool = False
    real: bool = False


def floats(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(BATCH, *shape)


def integers(high: int, *shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(0, high, (BATCH, *shape))


def inputs(*makers: Callable[[], Tensor]) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: tuple(make() for make in makers)


def images(size: int, channels: int = 3) -> Callable[[], tuple[Tensor, ...]]:
    return inputs(floats(channels, size, size))


OWN = {
    "perceptron": Network(own.perceptron, inputs(floats(20)), training=True, classic=True),
    "RNN": Network(lambda: own.Recurrent(nn.RNN), inputs(floats(9, 6)), classic=True),
    "LSTM": Network(lambda: own.Recurrent(nn.LSTM, num_layers=2), inputs(floats(9, 6)), classic=True),
    "LSTM, both directions": Network(
        lambda: own.Recurrent(nn.LSTM, bidirectional=True), inputs(floats(9, 6)), classic=True
    ),
    "GRU": Network(lambda: own.Recurrent(nn.GRU), inputs(floats(9, 6)), classic=True),
    "TransformerEncoder": Network(own.Encoder, inputs(integers(50, 8)), classic=True),
    "TransformerEncoder, norm first": Network(
        lambda: own.Encoder(norm_first=True, activation="gelu"), inputs(integers(50, 8)), classic=True
    ),
    "Transformer": Network(own.Seq2Seq, inputs(floats(7, 6), floats(5, 6)), classic=True),
    "U-Net": Network(own.UNet, images(16, 1), training=True, classic=True),
    "feature pyramid": Network(own.Pyramid, images(16), classic=True),
    "N-BEATS": Network(own.NBeats, inputs(floats(12)), classic=True),
    "siamese": Network(own.Siamese, inputs(floats(1, 8, 8), floats(1, 8, 8)), classic=True),
    "DeepSets": Network(own.DeepSets, inputs(floats(7, 4), integers(6, 1)), classic=True),
    "GCN": Network(own.GraphConvolution, inputs(floats(6, 5), floats(6, 6)), classic=True),
    "graph attention": Network(own.GraphAttention, inputs(floats(6, 5), floats(6, 6)), classic=True),
    "WaveNet": Network(own.WaveNet, inputs(floats(1, 24)), classic=True),
    "temporal convolutions": Network(own.Temporal, inputs(floats(4, 16))),
    "TabTransformer": Network(own.TabTransformer, inputs(integers(3, 3), floats(4)), classic=True),
    "DeepFM": Network(own.DeepFM, inputs(integers(60, 4)), classic=True),
    "mixture of experts": Network(own.MixtureOfExperts, inputs(floats(10)), classic=True),
    "autoencoder": Network(own.Autoencoder, images(8, 1), classic=True),
    "normalizations": Network(own.Normalized, images(12, 2), classic=True),
    "3-D convolutions": Network(own.Volume, inputs(floats(1, 8, 8, 8)), training=True, classic=True),
    "spatial transformer": Network(own.Warped, images(8, 1)),
    "state space": Network(own.StateSpace, inputs(floats(8, 4)), classic=True),
}


def vision(name: str, size: int = 32, real: bool = False, **settings: Any) -> Network:
    """Return a network of torchvision: a class with settings, or a function."""
    model = getattr(torchvision.models, name)
    return Network(
        lambda: model(num_classes=CLASSES, **settings), images(size), training=not real and name not in WITHOUT_BATCHES,
        real=real,
    )  # fmt: skip


WITHOUT_BATCHES = {
    "squeezenet1_1", "VisionTransformer", "SwinTransformer", "test_efficientnet_gn", "test_efficientnet_evos",
    "test_nfnet", "test_convnext", "test_convnext2", "test_mambaout", "edgenext_xx_small",
}  # fmt: skip
"""Networks without normalization by the statistics of minibatches."""


def without_dropout(network: nn.Module) -> nn.Module:
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return network


TORCHVISION = {
    "ResNet": vision("ResNet", block=torchvision.models.resnet.BasicBlock, layers=[1, 1, 1, 1]),
    "SqueezeNet": vision("squeezenet1_1"),
    "MobileNetV2": vision("mobilenet_v2", width_mult=0.25),
    "MobileNetV3": vision("mobilenet_v3_small", width_mult=0.5),
    "ShuffleNetV2": vision("shufflenet_v2_x0_5"),
    "MNASNet": vision("mnasnet0_5"),
    "EfficientNet": vision("efficientnet_b0"),
    "RegNet": vision("regnet_y_400mf"),
    "DenseNet": vision("DenseNet", growth_rate=8, block_config=(2, 2, 2), num_init_features=16),
    "GoogLeNet": vision("googlenet", aux_logits=False, init_weights=False),
    "VisionTransformer": vision(
        "VisionTransformer", image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64
    ),
    "SwinTransformer": vision(
        "SwinTransformer", patch_size=[4, 4], embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=[2, 2]
    ),
    "MaxViT": vision(
        "MaxVit", size=32, input_size=(32, 32), stem_channels=8, partition_size=2, block_channels=[8, 16],
        block_layers=[1, 1], head_dim=4, stochastic_depth_prob=0.0,
    ),
    "r3d": Network(
        lambda: torchvision.models.video.VideoResNet(
            torchvision.models.video.resnet.BasicBlock,
            [torchvision.models.video.resnet.Conv3DSimple] * 4, [1, 1, 1, 1],
            torchvision.models.video.resnet.BasicStem, num_classes=CLASSES,
        ),
        inputs(floats(3, 4, 16, 16)),
        training=True,
    ),
}  # fmt: skip


def timm_network(name: str, size: int = 32, *, training: bool = False, real: bool = False, **settings: Any) -> Network:
    return Network(
        lambda: timm.create_model(name, num_classes=CLASSES, **settings), images(size), training=training, real=real
    )  # fmt: skip


def mixer(**settings: Any) -> Network:
    model = timm.models.mlp_mixer.MlpMixer
    return Network(lambda: model(CLASSES, 32, patch_size=8, num_blocks=2, embed_dim=32, **settings), images(32))


def settled(network: Network) -> Network:
    """Return a network whose running statistics are those of a minibatch: without them its scores are huge."""

    def build() -> nn.Module:
        module = network.build().train()
        for part in module.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.momentum = 1.0
        module(*(torch.cat([x] * 8) + torch.randn(8 * BATCH, *x.shape[1:]) for x in network.inputs()))
        return module

    return replace(network, build=build)


TIMM = {
    **{
        f"timm {name}": timm_network(name, size, training=name not in WITHOUT_BATCHES)
        for name, size in (
            ("test_resnet", 32), ("test_byobnet", 32), ("test_efficientnet", 32), ("test_efficientnet_gn", 32),
            ("test_efficientnet_evos", 32), ("test_nfnet", 32), ("test_convnext", 32), ("test_convnext2", 32),
            ("test_mambaout", 32), ("lcnet_035", 32), ("ghostnet_050", 32), ("tinynet_e", 32),
            ("repvit_m0_9", 32), ("edgenext_xx_small", 64), ("fastvit_t8", 64),
            ("mobilevit_xxs", 64), ("resnest14d", 32), ("eca_resnext26ts", 32), ("efficientvit_b0", 32),
        )
    },
    **{
        f"timm {name}": timm_network(name, 32, img_size=32, patch_size=8)
        for name in ("test_vit", "test_vit2", "test_vit3", "test_vit4")
    },
    **{
        f"timm {name}": settled(timm_network(name))
        for name in ("mobilenetv4_conv_small_035", "mobileone_s0", "dla46_c")
    },
    **{
        f"timm {name}": timm_network(name, size)
        for name, size in (
            ("regnetx_002", 32), ("repvgg_a0", 32), ("skresnet18", 32), ("starnet_s1", 32),
            ("mobilevitv2_050", 64), ("hgnetv2_b0", 32), ("pvt_v2_b0", 32), ("mixnet_s", 32), ("rexnet_100", 32),
            ("res2net50_14w_8s", 32), ("shvit_s1", 64), ("efficientvit_m0", 64),
        )
    },
    "timm cait": timm_network("cait_xxs24_224", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2),
    "timm deit": timm_network(
        "deit_tiny_distilled_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2
    ),
    "timm beit": timm_network(
        "beit_base_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, init_values=0.1
    ),
    "timm swin": timm_network(
        "swin_tiny_patch4_window7_224", img_size=32, window_size=4, embed_dim=16, depths=(2, 2), num_heads=(2, 4)
    ),
    "timm coatnet": timm_network(
        "coatnet_pico_rw_224", 64, img_size=64, depths=(1, 1, 1, 1), embed_dim=(32, 32, 64, 64), stem_width=(16, 32)
    ),
    "timm maxvit": timm_network(
        "maxvit_pico_rw_256", 64, img_size=64, depths=(1, 1, 1, 1), embed_dim=(32, 32, 64, 64), stem_width=(16, 32)
    ),
    "timm twins": timm_network("twins_svt_small", 64, img_size=64, depths=(1, 1, 1, 1), embed_dims=(16, 32, 32, 64),
                               num_heads=(1, 2, 2, 4)),
    "timm pit": timm_network("pit_ti_224", 64, img_size=64),
    "timm eva02": timm_network(
        "eva02_tiny_patch14_224", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2
    ),
    "timm resmlp": mixer(block_layer=timm.models.mlp_mixer.ResBlock, norm_layer=timm.models.mlp_mixer.Affine),
    "timm gmlp": mixer(block_layer=timm.models.mlp_mixer.SpatialGatingBlock, mlp_layer=timm.layers.GatedMlp),
    "timm inception_next": timm_network("inception_next_atto", 64),
    "timm mixer": mixer(),
    "timm poolformer": Network(
        lambda: timm.models.metaformer.MetaFormer(depths=(1, 1, 1, 1), dims=(16, 24, 32, 40), num_classes=CLASSES),
        images(32),
    ),
    "timm xcit": timm_network(
        "xcit_nano_12_p8_224", 32, training=True, img_size=32, depth=2, embed_dim=32, num_heads=2
    ),
    "timm levit": timm_network("levit_128s", 64, training=True, img_size=64),
    "timm coat": timm_network("coat_tiny", 64, img_size=64),
    "timm convmixer": Network(
        lambda: timm.models.convmixer.ConvMixer(dim=32, depth=2, num_classes=CLASSES), images(32), training=True
    ),
    "timm swinv2": timm_network(
        "swinv2_tiny_window8_256", img_size=32, patch_size=4, window_size=4, embed_dim=16, depths=(2, 2),
        num_heads=(2, 4),
    ),
}  # fmt: skip


class Pooled(nn.Module):
    """The mean over the positions of a transformer's last hidden state, without those of padding, and a linear head."""

    def __init__(self, body: nn.Module, names: tuple[str, ...], width: int) -> None:
        super().__init__()
        self.body, self.names, self.head = body, names, nn.Linear(width, CLASSES)

    def features(self, *arrays: Tensor) -> Tensor:
        values = dict(zip(self.names, arrays, strict=True))
        found = self.body(**values, return_dict=True).last_hidden_state
        if "attention_mask" in values:
            mask = values["attention_mask"][:, :, None].to(found.dtype)
            return self.head((found * mask).sum(1) / mask.sum(1))
        axes = tuple(range(2, found.ndim)) if found.ndim == 4 else (1,)
        return self.head(found.mean(axes))


class One(Pooled):
    """Has one input."""

    def forward(self, x0: Tensor) -> Tensor:
        return self.features(x0)


class Two(Pooled):
    """Has two inputs."""

    def forward(self, x0: Tensor, x1: Tensor) -> Tensor:
        return self.features(x0, x1)


TINY = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 60,
    "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "attention_dropout": 0.0, "hidden_dropout": 0.0,
    "num_key_value_heads": 1, "head_dim": 16,
}  # fmt: skip


def hub(
    kind: str, given: Mapping[str, Callable[[], Tensor]], *, width: int = 32, part: str = "", classic: bool = False,
    real: bool = False, **settings: Any,
) -> Network:  # fmt: skip
    """Return the base model of a kind of configuration of transformers; ``part`` names a part of it."""

    def build() -> nn.Module:
        config = transformers.AutoConfig.for_model(kind, **(settings if real else {**TINY, **settings}))
        body = transformers.AutoModel.from_config(config)
        body = getattr(body, part) if part else body
        return without_dropout((One if len(given) == 1 else Two)(body, tuple(given), width))

    return Network(build, inputs(*given.values()), classic=classic, real=real)


TOKENS = {"input_ids": integers(57, 8)}
MASKED = {
    "input_ids": lambda: torch.randint(1, 57, (BATCH, 8)),  # files of the classic exporter do not say that 0 is padding
    "attention_mask": lambda: (torch.arange(8) < torch.tensor([[8], [5], [7], [3]])).long(),
}
PIXELS = {"pixel_values": floats(3, 32, 32)}
PATCHES = {"image_size": 32, "patch_size": 8}

TRANSFORMERS = {
    "BERT": hub("bert", MASKED, classic=True),
    "DistilBERT": hub("distilbert", MASKED, dim=32, hidden_dim=64, n_heads=2, n_layers=2, dropout=0.0),
    "RoBERTa": hub("roberta", TOKENS, pad_token_id=1, max_position_embeddings=40),
    "ALBERT": hub("albert", TOKENS, embedding_size=16, classifier_dropout_prob=0.0),
    "ELECTRA": hub("electra", TOKENS, embedding_size=16),
    "DeBERTa-v2": hub("deberta-v2", TOKENS, relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"]),
    "MPNet": hub("mpnet", TOKENS),
    "RoFormer": hub("roformer", TOKENS, embedding_size=32),
    "FNet": hub("fnet", TOKENS),
    "SqueezeBERT": hub("squeezebert", TOKENS, embedding_size=32, q_groups=2, k_groups=2, v_groups=2),
    "ModernBERT": hub("modernbert", MASKED, global_attn_every_n_layers=2, local_attention=4),
    "GPT-2": hub("gpt2", TOKENS, n_embd=32, n_layer=2, n_head=2, n_positions=32),
    "GPT-NeoX": hub("gpt_neox", TOKENS),
    "OPT": hub("opt", TOKENS, ffn_dim=64, word_embed_proj_dim=32, dropout=0.0),
    "BLOOM": hub("bloom", TOKENS, n_layer=2, n_head=2),
    "LLaMA": hub("llama", MASKED),
    "Qwen3": hub("qwen3", TOKENS),
    "Gemma": hub("gemma", TOKENS),
    "Phi": hub("phi", TOKENS),
    "Mixtral": hub("mixtral", TOKENS, num_local_experts=2),
    "Mamba": hub("mamba", TOKENS, state_size=4, conv_kernel=2),
    "T5 encoder": hub("t5", TOKENS, part="encoder", d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2),
    "BART encoder": hub(
        "bart", TOKENS, part="encoder", d_model=32, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=64
    ),
    "ViT": hub("vit", PIXELS, **PATCHES),
    "BEiT": hub("beit", PIXELS, **PATCHES, use_relative_position_bias=True),
    "DINOv2": hub("dinov2", PIXELS, **PATCHES),
    "SegFormer": hub(
        "segformer", PIXELS, width=16, hidden_sizes=[8, 16, 24, 32], num_attention_heads=[1, 2, 2, 2], depths=[1] * 4
    ),
    "MobileViT": hub(
        "mobilevit", {"pixel_values": floats(3, 64, 64)}, width=640, hidden_sizes=[24, 32, 40], image_size=64
    ),
    "Wav2Vec2": hub(
        "wav2vec2", {"input_values": floats(400)}, conv_dim=[16, 16], conv_kernel=[10, 3], conv_stride=[5, 2],
        num_feat_extract_layers=2, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, apply_spec_augment=False,
    ),
    "Whisper encoder": hub(
        "whisper", {"input_features": floats(8, 32)}, part="encoder", d_model=32, encoder_layers=2,
        encoder_attention_heads=2, encoder_ffn_dim=64, decoder_attention_heads=2, num_mel_bins=8,
        max_source_positions=16,
    ),
    "Whisper": hub(
        "whisper", {"input_features": floats(8, 32), "decoder_input_ids": integers(57, 6)}, d_model=32,
        encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=64,
        decoder_ffn_dim=64, num_mel_bins=8, max_source_positions=16, max_target_positions=16, dropout=0.0,
        decoder_start_token_id=1,
    ),
}  # fmt: skip

REAL = {
    "resnet18": vision("resnet18", 64, real=True),
    "densenet121": vision("densenet121", 64, real=True),
    "mobilenet_v3_small": vision("mobilenet_v3_small", 64, real=True),
    "ConvNeXt tiny": vision("convnext_tiny", 64, real=True),
    "ViT tiny": timm_network("vit_tiny_patch16_224", 224, real=True),
    "resnet50": vision("resnet50", 224, real=True),
    "ViT-B/16": vision("vit_b_16", 224, real=True),
    "BERT base": hub(
        "bert", {"input_ids": integers(30000, 128)}, width=768, real=True, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    ),
    "BERT small": hub(
        "bert", {"input_ids": integers(30000, 64)}, width=512, real=True, hidden_size=512, num_hidden_layers=4,
        num_attention_heads=8, intermediate_size=2048,
    ),
}  # fmt: skip

SOURCES: dict[str, dict[str, Network]] = {
    "own": OWN, "torchvision": TORCHVISION, "timm": TIMM, "transformers": TRANSFORMERS, "real sizes": REAL,
}  # fmt: skip
NETWORKS = {name: network for networks in SOURCES.values() for name, network in networks.items()}
