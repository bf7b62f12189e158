"""Encodings of patches by their cameras."""

import math

import numpy as np
from hypothesis import strategies as st

from members.member import Member, Oracle, grids

SIDES = {"height": st.integers(1, 64), "width": st.integers(1, 64)}


def motion(row, token):
    """T of a token's camera, the identity where it stands nowhere."""
    nowhere = row.position[token] is None or not row.segment[token]
    return np.eye(4) if nowhere else np.asarray(row.relation.view[token], np.float64)


def lens(row, token):
    """K of a token's camera, 3 x 3, of an image whose sides are 1."""
    fx, fy, cx, cy = map(float, row.relation.lens[token])
    return np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])


class PropeOracle(Oracle):
    """q_i.(D_i D_j^-1 k_j) and D_i D_j^-1 v_j, with D = blocks of P and of 2 x 2 rotations, inverted by NumPy."""

    def transform(self, row, head, i, j, q, k):
        return q, self.between(row, i, j, len(k)) @ k

    def carried(self, row, head, i, j, v):
        return self.between(row, i, j, len(v)) @ v

    def between(self, row, i, j, dim):
        return self.blocks(row, i, dim) @ np.linalg.inv(self.blocks(row, j, dim))

    def blocks(self, row, token, dim):
        matrix = np.zeros((dim, dim))
        for group in range(dim // 8):
            matrix[4 * group : 4 * group + 4, 4 * group : 4 * group + 4] = self.projection(row, token)
        for a, b, angle in self.pairs(row.position[token], dim):
            matrix[[a, a, b, b], [a, b, a, b]] = math.cos(angle), -math.sin(angle), math.sin(angle), math.cos(angle)
        return matrix

    def projection(self, row, token):
        matrix = motion(row, token)
        if self.e.intrinsics and row.position[token] is not None and row.segment[token]:
            matrix = np.block([[lens(row, token), np.zeros((3, 1))], [np.zeros((1, 3)), 1]]) @ matrix
        return matrix

    def pairs(self, p, dim):
        """(channel, channel, angle by which an output is turned) of each pair: columns, then rows."""
        eighth = dim // 8
        for block, axis in enumerate((-1, -2)):
            for c in range(eighth):
                start = dim // 2 + block * dim // 4 + c
                yield start, start + eighth, 0 if p is None else p[axis] * self.e.base ** (-c / eighth)


class GtaOracle(PropeOracle):
    """The same of rigid motions, with octaves of the place in the image."""

    def projection(self, row, token):
        matrix = motion(row, token)
        matrix[:3, 3] *= float(self.params["translation"][0])
        return matrix

    def pairs(self, p, dim):
        for octave in range(dim // 8):
            for axis, side in enumerate((self.e.height, self.e.width)):
                start = dim // 2 + 4 * octave + 2 * axis
                turn = 0 if p is None else 2 * math.pi * p[axis - 2] / side * 2.0 ** (octave + 1 - dim // 8)
                yield start, start + 1, -turn


class RayRopeOracle(Oracle):
    """D_ii q_i.(D_ij k_j) and D_ii^T D_ij v_j, with 2 x 2 blocks that are means over the angles between two depths."""

    def observe(self, row):
        kernel, bias = (np.asarray(self.params[name], np.float64) for name in ("kernel", "bias"))
        self.log_depth = (row.x @ kernel + bias) @ [[1, 1], [-1, 1]]  # of the nearest and the farthest point

    def transform(self, row, head, i, j, q, k):
        return self.seen(row, i, i, len(q)) @ q, self.seen(row, i, j, len(k)) @ k

    def carried(self, row, head, i, j, v):
        return self.seen(row, i, i, len(v)).T @ self.seen(row, i, j, len(v)) @ v

    def seen(self, row, i, j, dim):
        matrix, half = np.eye(dim), dim // 2
        if row.position[i] is None or row.position[j] is None:
            return matrix
        ends = [self.coordinates(row, i, j, end) for end in (0, 1)]
        for pair in range(half):
            octave, which = divmod(pair, len(ends[0]))
            (near, period), (far, _) = (end[which] for end in ends)
            a, b = (2 * math.pi * x * self.e.base**octave / period for x in (near, far))
            apart = abs(b - a) > 1e-5
            cos = (math.sin(b) - math.sin(a)) / (b - a) if apart else math.cos((a + b) / 2)
            sin = (math.cos(a) - math.cos(b)) / (b - a) if apart else math.sin((a + b) / 2)
            matrix[np.ix_([pair, pair + half], [pair, pair + half])] = [[cos, sin], [-sin, cos]]
        return matrix

    def coordinates(self, row, i, j, end):
        """(coordinate, its longest period) of token j in the frame of token i, at one end of its depths."""
        to_world = np.linalg.inv(motion(row, j))
        depth = max(math.exp(min(self.log_depth[j, end], 3)), 0.01)
        found = [(x, 4) for x in (motion(row, i) @ to_world[:, 3])[:3]]
        depths = []
        for x, y in ((0, 0), (1, 0), (0, 1)):
            u, v = (row.position[j][2] + x) / self.e.width - 0.5, (row.position[j][1] + y) / self.e.height - 0.5
            ray = np.linalg.solve(lens(row, j), [u, v, 1])
            point = motion(row, i) @ to_world @ [*(depth * ray), 1]
            image = lens(row, i) @ point[:3]
            found += [(x, 8) for x in image[:2] / np.linalg.norm(image)]
            depths.append((min(abs(point[2]), 10), 80))
        return found + depths


class PluckerOracle(Oracle):
    """The direction and the moment of the ray, of a second point on it in the world."""

    def codes(self, x, row):
        return np.array([self.ray_code(row, token, x.shape[1]) for token in range(len(x))])

    def ray_code(self, row, token, width):
        p = row.position[token]
        if p is None or not row.segment[token]:
            return np.zeros(width)
        uv = [(p[-1] + 0.5) / self.e.width - 0.5, (p[-2] + 0.5) / self.e.height - 0.5, 1]
        to_world = np.linalg.inv(motion(row, token))
        centre = to_world[:3, 3]
        point = (to_world @ [*np.linalg.solve(lens(row, token), uv), 1])[:3]
        d = (point - centre) / np.linalg.norm(point - centre)
        kernel, bias = (np.asarray(self.params[name], np.float64) for name in ("kernel", "bias"))
        return np.concatenate([d, np.cross(point, d)]) @ kernel + bias


MEMBERS = {
    "prope": Member(
        grids("prope()", "prope(base=10, intrinsics=False)"),
        PropeOracle,
        {"base": st.floats(1, 1e6), "intrinsics": st.booleans()},
        vit="",
        decoder="",
    ),
    "gta": Member(grids("gta(height=6, width=7)"), GtaOracle, SIDES, vit="", decoder=""),
    "rayrope": Member(
        grids("rayrope(height=6, width=7, views=2)", "rayrope(height=6, width=7, views=3, base=2)"),
        RayRopeOracle,
        SIDES | {"views": st.integers(1, 4), "base": st.floats(1, 10)},
        vit="",
        decoder="",
    ),
    "plucker": Member(grids("plucker(height=6, width=7)"), PluckerOracle, SIDES, vit="", decoder=""),
}
