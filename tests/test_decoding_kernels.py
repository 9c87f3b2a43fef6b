"""The compiled kernels against plain arithmetic: exact where they claim to be, and the same at any batch and thread."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pusl.decoding.cpu.kernels import attend, load_kernels, masked_softmax
from pusl.decoding.cpu.linear import (
    LARGEST_7BIT_WEIGHT,
    Linear,
    QuantizedLinear,
    SevenBitProduct,
    has_seven_bit_product,
)

needs_avx2 = pytest.mark.skipif(not has_seven_bit_product(), reason="the product of 7-bit numbers needs AVX2 and numba")


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"], autouse=True)
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def whole_weights(outputs: int, inputs: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(inputs)
    return torch.randint(
        -LARGEST_7BIT_WEIGHT, LARGEST_7BIT_WEIGHT + 1, (outputs, inputs), generator=generator, dtype=torch.int8
    )


@needs_avx2
@pytest.mark.parametrize("rows", [8, 16, 104])  # 104: more than one block of rows
@pytest.mark.parametrize("outputs, inputs", [(8, 8), (24, 64), (13, 20), (2003, 136)])
def test_sums_are_exact_for_rows_of_seven_bits(rows, outputs, inputs):
    weight = whole_weights(outputs, inputs)
    x = torch.randint(0, 128, (rows, inputs), generator=torch.Generator().manual_seed(1)).float()
    x[:, 0], x[:, 1] = 0.0, 127.0  # so that a step is exactly 1 and the zero point 0
    expected = x.double() @ weight.T.double()
    found = SevenBitProduct(weight, torch.ones(outputs))(x)
    assert torch.equal(found.double(), expected)


@needs_avx2
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_numbers_do_not_overflow(sign):
    weight = torch.full((8, 3072), sign * LARGEST_7BIT_WEIGHT, dtype=torch.int8)
    found = SevenBitProduct(weight, torch.ones(8))(torch.full((8, 3072), 127.0))
    assert torch.equal(found, torch.full((8, 8), float(sign * LARGEST_7BIT_WEIGHT * 127 * 3072)))


@needs_avx2
def test_negative_rows_zero_rows_relu_and_residual():
    weight, scale = whole_weights(40, 64), torch.linspace(0.01, 0.02, 40)
    x = torch.randn((8, 64), generator=torch.Generator().manual_seed(2))
    x[1], x[2], x[3] = 0.0, -x[2].abs(), x[3].abs()
    product = SevenBitProduct(weight, scale)
    exact = x @ (weight.float() * scale[:, None]).T
    found = product(x)
    assert torch.all(found[1] == 0)
    assert (found - exact).norm() < 0.02 * exact.norm()
    residual = torch.randn((8, 40), generator=torch.Generator().manual_seed(3))
    assert torch.allclose(product(x, residual=residual), found + residual, atol=1e-6)
    assert torch.equal(product(x, relu=True), found.relu())


@needs_avx2
def test_the_norm_changes_the_scale_of_a_row_and_nothing_else():
    weight, scale = whole_weights(16, 40), torch.ones(16)
    x = 5 * torch.randn((8, 40), generator=torch.Generator().manual_seed(8))
    x[3] = 0.0
    expected = SevenBitProduct(weight, scale)(torch.nn.functional.rms_norm(x, (40,), None, 1e-6))
    assert torch.allclose(SevenBitProduct(weight, scale, eps=1e-6)(x), expected, rtol=1e-4, atol=1e-3)


@needs_avx2
def test_a_row_does_not_depend_on_its_neighbors():
    product = SevenBitProduct(whole_weights(100, 96), torch.ones(100))
    x = torch.randn((128, 96), generator=torch.Generator().manual_seed(4))
    x[64] = 1000.0
    assert torch.equal(product(x)[:8], product(x[:8]))
    assert torch.equal(product(x)[96:], product(x[96:].clone()))


@pytest.mark.parametrize("own", [True, False], ids=["ours", "oneDNN's"])
def test_int8_products_are_close_to_fp32(own, monkeypatch):
    if own and not has_seven_bit_product():
        pytest.skip("needs AVX2 and numba")
    monkeypatch.setattr("pusl.decoding.cpu.linear.has_seven_bit_product", lambda: own)
    generator = torch.Generator().manual_seed(5)
    weight, x = torch.randn((72, 128), generator=generator), torch.randn((16, 128), generator=generator)
    exact, found = Linear(weight)(x), QuantizedLinear(weight)(x)
    assert (found - exact).norm() < 0.03 * exact.norm()


@pytest.mark.skipif(load_kernels() is None, reason="needs numba")
def test_softmax_over_real_tokens_is_torchs():
    generator = torch.Generator().manual_seed(6)
    scores, bias = 20 * torch.randn((3, 2, 24, 24), generator=generator), torch.randn((2, 24, 24), generator=generator)
    real = torch.tensor([24, 1, 17])
    hidden = torch.arange(24) >= real[:, None]
    expected = (scores + bias).masked_fill(hidden[:, None, None], -torch.inf).softmax(-1)
    found = masked_softmax(scores.clone(), bias, real)
    assert torch.allclose(found, expected, atol=1e-6, rtol=1e-5)
    assert torch.all(found[1, :, :, 1:] == 0)


@pytest.mark.skipif(load_kernels() is None, reason="needs numba")
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_attention_of_single_rows_is_torchs(kind):
    generator = torch.Generator().manual_seed(7)
    keys, values = torch.randn((2, 4, 3, 32, 16), generator=generator).to(kind)
    queries, relative_bias = torch.randn((5, 48), generator=generator), torch.randn((33, 3), generator=generator)
    items, counts = np.array([0, 3, 1, 1, 2]), np.array([32, 1, 9, 20, 31])
    found = attend(queries, items, counts, keys, values, relative_bias)
    keys, values = keys.float(), values.float()
    for row in range(5):
        item, count = items[row], counts[row]
        query = queries[row].view(3, 1, 16)
        score = (query @ keys[item, :, :count].mT)[:, 0] + relative_bias[count - torch.arange(count)].T  # (H, T)
        expected = (score.softmax(-1)[:, None] @ values[item, :, :count])[:, 0].flatten()
        assert torch.allclose(found[row], expected, atol=1e-5)
