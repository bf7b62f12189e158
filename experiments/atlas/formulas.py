r"""The formula of every registered encoding and frequency scaling, in LaTeX, for its card.

The letters are those of `LETTERS`. What a formula leaves out (tokens that stand nowhere, several axes, how parameters
start) stands in the docstring of the encoding, and what is computed is tested against the paper, transcribed in float64.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

import latex2mathml.converter

LETTERS = (
    ("m, n", "positions of a query and of a key"),
    ("p", "position of any token"),
    (r"\ell_{mn}", "logit, before the softmax"),
    ("b_{mn}", "what is added to a logit"),
    ("a_{mn}", "weight, behind the softmax"),
    ("h, H", "a head, counted from 1, and the number of heads"),
    ("c, D", "a channel or pair of channels, counted from 0, and the channels of a head"),
    ("M", "channels of a token"),
    (r"\theta_c", "angle by which a pair of channels turns from one position to the next"),
    (r"\beta", "base of the frequencies"),
    ("s", "factor by which a context grows"),
    ("w", "size of a window"),
    ("N, T", "trained length, and length of a document"),
)
_TURNED = r"q'_c = q_c\,e^{i m\theta_c},\quad k'_c = k_c\,e^{i n\theta_c},\quad \theta_c = \beta^{-2c/D}"
_SHOWN = r"a_{mn} > 0 \;\iff\;"
_WAVE = r"\omega_c = \beta^{-2c/M}"
_PLANE = (
    r"\left[\sin x\omega_k \,\middle|\, \cos x\omega_k \,\middle|\, \sin y\omega_k \,\middle|\, \cos y\omega_k\right]"
)

_SLOPES = (
    r"H\ \text{a power of 2; else the slopes of the next lower power, then every other one of twice as many heads}"
)

_ADDED = {
    "sinusoidal": (
        r"\mathrm{PE}_{p,2c} = \sin\left(p\,\omega_c\right),\quad \mathrm{PE}_{p,2c+1} = \cos\left(p\,\omega_c\right)",
        _WAVE,
    ),
    "scaled_sinusoidal": (r"\mathrm{PE}_p = s \left[\sin p\omega_c \,\middle|\, \cos p\omega_c\right]", _WAVE),
    "sincos2d_mae": (rf"\mathrm{{PE}}_{{(y,x)}} = {_PLANE}", r"\omega_k = \beta^{-k/(M/4)}"),
    "sincos2d_big_vision": (rf"\mathrm{{PE}}_{{(y,x)}} = {_PLANE}", r"\omega_k = \beta^{-k/(M/4-1)}"),
    "fourier": (
        r"\mathrm{PE}_p = \mathrm{GELU}\left(r W_1 + b_1\right) W_2 + b_2",
        r"r = \frac{1}{\sqrt{F}} \left[\cos pW \,\middle|\, \sin pW\right]",
    ),
    "learned": (r"x_p \leftarrow x_p + E_p",),
    "learned_factorized": (
        r"x_{(y,x)} \leftarrow x_{(y,x)} + E^{\mathrm{row}}_y + E^{\mathrm{column}}_x\quad\text{or}\quad"
        r" x_{(y,x)} + \left[E^{\mathrm{row}}_y \,\middle|\, E^{\mathrm{column}}_x\right]",
    ),
    "abacus": (
        r"x_t \leftarrow x_t + E_{\mathrm{place}(t) + k}",
        r"k \sim U\{0, \dots, k_{\max}\}\ \text{in training, else}\ 0",
    ),
    "centrality": (r"x_i \leftarrow x_i + z_{\deg(i)}",),
    "laplacian": (
        r"x_i \leftarrow x_i + C\,\left(u_{1,i}, \dots, u_{k,i}\right) + c",
        r"\left(I - D^{-1/2} A\,D^{-1/2}\right) u_j = \lambda_j u_j,\quad 0 = \lambda_0 \le \lambda_1 \le \dots",
    ),
    "random_walk": (
        r"x_i \leftarrow x_i + C\,\left(R_{ii}, \left(R^2\right)_{ii}, \dots, \left(R^k\right)_{ii}\right) + c,\quad"
        r" R = D^{-1} A",
    ),
    "tree": (
        r"x_i \leftarrow x_i + \left[\,\left[i_a = b\right] p_f^a \sqrt{\left(1 - p_f^2\right) M/2}\,\right]_{a,b,f}",
        r"i_a\ \text{the branch}\ a\ \text{levels above node}\ i,\quad p_f = \tanh w_f",
    ),
    "peg": (r"x_p \leftarrow x_p + b + \sum_{o} w_o \odot x_{p+o}",),
}
_BIASES = {
    "alibi": (r"b^{(h)}_{mn} = -2^{-8h/H}\,|m-n|", _SLOPES),
    "alibi_pi": (
        r"b^{(h)}_{mn} = -2^{-8h/H}\,\min\left(1, \frac{N}{T}\right)|m-n|,\quad T\ \text{the length of the document}",
        _SLOPES,
    ),
    "kerple": (
        r"b^{(h)}_{mn} = -p_h \ln\left(1 + a_h |m-n|\right)\quad\text{or}\quad -a_h |m-n|^{p_h},\ 0 < p_h \le 2",
    ),
    "sandwich": (
        r"b^{(h)}_{mn} = \frac{H}{8h} \sum_{c=0}^{\bar d/2-1} \cos\left((m-n)\,\beta^{-2c/\bar d}\right),\quad \bar d = 128",
    ),
    "t5": (
        r"b^{(h)}_{mn} = E_{h,\,\mathrm{bucket}(m-n)}",
        r"\mathrm{bucket}(d) = \begin{cases} d & d < \frac{K}{2} \\"
        r" \min\left(K-1,\ \frac{K}{2} + \left\lfloor \frac{K}{2}\,\frac{\ln(2d/K)}{\ln(2d_{\max}/K)} \right\rfloor\right)"
        r" & \text{else} \end{cases}\quad\text{for the } K \text{ buckets of a side}",
    ),
    "graphormer": (
        r"b^{(h)}_{ij} = B_{h,\,\phi(i,j)}",
        r"\phi(i,j)\ \text{the edges on the shortest path from node}\ i\ \text{to node}\ j",
    ),
    "swin": (r"b^{(h)}_{mn} = B_{h,\,\Delta y,\,\Delta x},\quad (\Delta y, \Delta x) = m - n",),
    "beit": (
        r"b^{(h)}_{mn} = \begin{cases} B_{h,\,\Delta y,\,\Delta x} & \text{between patches} \\"
        r" u_h,\ v_h,\ w_h & \text{from, to and at the class token} \end{cases}",
    ),
    "swin_v2": (
        r"b_{mn} = 16\,\sigma\left(\mathrm{MLP}\left(\frac{\mathrm{sgn}(x)\log_2(1+|x|)}{\log_2 8}\right)\right)",
        r"x = \frac{8\,(m-n)}{w-1}",
    ),
    "dpb": (r"b_{mn} = \mathrm{MLP}(m-n),\quad \text{three times LayerNorm, ReLU and a linear layer}",),
    "fire": (r"b_{mn} = f\left(\frac{\ln\left(c\,|m-n| + 1\right)}{\ln\left(c\,\max(m, L) + 1\right)}\right)",),
    "dape": (r"\ell'_{mn} = \ell_{mn} + b_{mn} + f\left(\left[\frac{q_m \cdot k_n}{\sqrt D},\ b_{mn}\right]\right)",),
    "lookhere": (
        r"b^{(h)}_{mn} = \begin{cases} -s\,s_h\,\lVert m-n \rVert & n \text{ within the view of head } h \\"
        r" -10^9 & \text{else} \end{cases}",
    ),
    "shaw": (
        r"\ell_{mn} = \frac{q_m \cdot \left(k_n + a^K_r\right)}{\sqrt D},\quad"
        r" o_m = \sum_n a_{mn}\left(v_n + a^V_r\right),\quad r = \mathrm{clip}(n-m, -R, R)",
    ),
    "transformer_xl": (
        r"\ell_{mn} = \frac{(q_m+u)\cdot k_n + (q_m+v)\cdot W r_{m-n}}{\sqrt D}",
        r"r_d = \left[\sin d\,\beta^{-2c/M} \,\middle|\, \cos d\,\beta^{-2c/M}\right]",
    ),
    "deberta": (
        r"\ell_{mn} = \frac{q_m\cdot k_n + q_m\cdot K_r + k_n\cdot Q_r}{\sqrt{3D}},\quad r = \mathrm{bucket}(m-n)",
    ),
    "tupe": (
        r"\ell_{mn} = \frac{q_m\cdot k_n + \left(p_m U_Q\right)\cdot\left(p_n U_K\right)}{\sqrt{2D}},\quad"
        r" p_t = \mathrm{LayerNorm}(E_t)",
    ),
    "bam": (r"b^{(h)}_{mn} = -e^{a_h}\left(|n-m-\mu_h| + 10^{-5}\right)^{\nu_h}",),
}
_CONTENT = {
    "cope": (
        r"b_{mn} = \frac{q_m \cdot e\left[P_{mn}\right]}{\sqrt D},\quad"
        r" P_{mn} = \min\left(P_{\max},\ \sum_{l=n}^{m} \sigma\left(\frac{q_m\cdot k_l}{\sqrt D}\right)\right)",
    ),
    "fox": (r"b^{(h)}_{mn} = \sum_{l=n+1}^{m} \ln\sigma\left(w_h\cdot x_l + \beta_h\right)",),
    "cable": (r"b^{(h)}_{mn} = -\sum_{l=n+1}^{m} \mathrm{softplus}\left(w_h\cdot x_l + \beta_h\right)",),
    "data_dependent_alibi": (
        r"b^{(h)}_{mn} = \begin{cases} \sum_{l=n+1}^{m} \ln f_{h,l} & n \le m \\"
        r" \sum_{l=m+1}^{n} \ln g_{h,l} & n > m \end{cases}",
        r"f_{h,l} = \sigma\left(w_h\cdot x_l + \beta_h\right),\quad g_{h,l} = \sigma\left(w'_h\cdot x_l + \beta'_h\right)",
    ),
    "selective_rope": (
        r"q'_{t,c} = q_{t,c}\,e^{i\Phi_{t,c}},\quad k'_{t,c} = k_{t,c}\,e^{i\Phi_{t,c}},\quad"
        r" \Phi_{t,c} = \theta_c \sum_{s\le t} \varphi_{s,c}",
        r"\varphi = \mathrm{conv}\left(U V \hat x\right),\quad \theta_c = \beta^{-2c/D}",
    ),
    "grape_a": (
        r"b^{(h)}_{mn} = -|m-n|\,\omega_h\left(\mathrm{softplus}\left(\frac{v_h\cdot q_m}{\sqrt D}\right)"
        r" + \mathrm{softplus}\left(\frac{u_h\cdot k_n}{\sqrt D}\right)\right)",
    ),
    "grape_ap": (
        r"b^{(h)}_{mn} = \sum_{l=n+1}^{m} \alpha_h \ln\sigma\left(\frac{p_m\cdot R^l\hat p_l}{P}\right),\quad"
        r" p_l = W_h x_l,\quad \alpha_h = 2^{-8h/H}",
        _SLOPES,
    ),
    "grape_m": (
        r"q'_{t,c} = q_{t,c}\,e^{i\Phi_t\theta_c},\quad k'_{t,c} = k_{t,c}\,e^{i\Phi_t\theta_c}",
        r"\Phi_t = \sum_{s<t} \sigma\left(\frac{w\cdot x_s + b}{16}\right),\quad \theta_c\ \text{learned}",
    ),
    "carope": (
        r"q'_{t,c} = q_{t,c}\,e^{i\Phi_{t,c}},\quad k'_{t,c} = k_{t,c}\,e^{i\Phi_{t,c}},\quad"
        r" \Phi_{t,c} = \sum_{s\le t} f_h\left(x_s\right)^c",
        r"f_h(x) = \frac{1}{1 + \mathrm{softplus}\left(w_h\cdot x + b_h\right)}",
    ),
    "repo": (
        r"q'_{t,c} = q_{t,c}\,e^{i z_t\theta_c},\quad k'_{t,c} = k_{t,c}\,e^{i z_t\theta_c},\quad"
        r" \theta_c = \beta^{-2c/D}",
        r"z_t = w_h\cdot\left(\mathrm{silu}\left(W_g x_t\right)\odot W_c x_t\right)",
    ),
    "stick_breaking": (
        r"a_{mn} = \beta_{mn} \prod_{n<l<m} \left(1 - \beta_{ml}\right),\quad \beta_{mn} = \sigma\left(\ell_{mn}\right)",
    ),
    "tapa": (
        r"\ell_{mn} = \frac{q^A_m\cdot k^A_n}{\sqrt{\theta D}}"
        r" \cos\left(2\pi\,|m-n|^\alpha\,\frac{q^P_m\cdot k^P_n}{\sqrt{(1-\theta)D}}\right)",
        r"q = \left[q^A \,\middle|\, q^P\right],\quad k = \left[k^A \,\middle|\, k^P\right],\quad"
        r" \theta D\ \text{channels in}\ A",
    ),
    "path": (
        r"\ell_{mn} = \frac{q_m\cdot H_m H_{m-1}\cdots H_{n+1} k_n}{\sqrt D},\quad H_t = I - \beta_t w_t w_t^T",
        r"\beta_t = 2\sigma\left(u\cdot x_t + b\right),\quad"
        r" w_t = \frac{\hat w_t}{\sqrt{|\hat w_t|^2 + 10^{-6}}},\quad"
        r" \hat w = \mathrm{silu}\left(\mathrm{conv}\left(U V x\right)\right)",
    ),
}
_ROTATIONS = {
    "rope": (_TURNED, r"\langle q'_m, k'_n \rangle = \mathrm{Re} \sum_c q_c\,\bar k_c\,e^{i(m-n)\theta_c}"),
    "axial_rope": (
        r"q'_{a,c} = q_{a,c}\,e^{i m_a\theta_c}\quad\text{for each axis } a = 1, \dots, A",
        r"\theta_c = \beta^{-2Ac/D},\quad c = 0, \dots, \frac{D}{2A}-1",
    ),
    "p_rope": (
        r"q'_c = q_c\,e^{i m\theta_c},\quad \theta_c = \begin{cases} \beta^{-2c/D} & c < \lfloor r D/2 \rfloor \\"
        r" 0 & \text{else} \end{cases}",
    ),
    "hope": (
        r"q'_c = q_c\,e^{i m\theta_c},\quad \theta_c = \begin{cases} \beta^{-2c/D} & 2\pi\,\beta^{2c/D} \le N \\"
        r" 0 & \text{else} \end{cases}",
    ),
    "xpos": (
        r"q'_c = q_c\,\zeta_c^{m/B}\,e^{i m\theta_c},\quad k'_c = k_c\,\zeta_c^{-n/B}\,e^{i n\theta_c}",
        r"\zeta_c = \frac{2c/D + \gamma}{1+\gamma},\quad \theta_c = \beta^{-2c/D}",
    ),
    "value_rotary": (r"o_m = R_m^\top \sum_n a_{mn}\,R_n v_n",),
    "fope": (
        r"C(m) = \cos(m\omega)\,F^{\cos},\quad S(m) = \sin(m\omega)\,F^{\sin}",
        r"(a, b)_c \mapsto \left(a\,C_c - b\,S_c,\ a\,S_c + b\,C_c\right),\quad \omega_c = \beta^{-2c/D} \ge \frac{2\pi}{N}",
    ),
    "rope_mixed": (
        r"q'_{h,c} = q_{h,c}\,e^{i\left(m_y\theta^y_{h,c} + m_x\theta^x_{h,c}\right)},\quad"
        r" \theta^y_{h,c},\ \theta^x_{h,c}\ \text{learned}",
    ),
    "dinov3": (
        r"q'_{a,c} = q_{a,c}\,e^{2\pi i u_a\,\beta^{-2Ac/D}},\quad u_a = \frac{2\left(m_a + \frac12\right)}{n_a} - 1",
    ),
    "mrope": (
        r"q'_c = q_c\,e^{i m_{a(c)}\theta_c},\quad \theta_c = \beta^{-2c/D},\quad a(c) \in \{\text{time, row, column}\}",
    ),
    "liere": (r"q'_m = \exp\left(\sum_a m_a A_a\right) q_m,\quad A_a = -A_a^\top\ \text{learned}",),
    "pope": (
        r"q'_c = \mathrm{softplus}(q_c)\,e^{i m\theta_c},\quad"
        r" k'_c = \mathrm{softplus}(k_c)\,e^{i\left(n\theta_c + \delta_c\right)},\quad \theta_c = \beta^{-c/D}",
        r"\ell_{mn} = \frac{1}{\sqrt D} \sum_c \mathrm{softplus}(q_c)\,\mathrm{softplus}(k_c)"
        r"\cos\left((n-m)\theta_c + \delta_c\right)",
    ),
    "lerope": (r"q'_c = q_c\,e^{i m\theta_c},\quad \theta_c = e^{a_c}\,\beta^{-2c/D},\quad a_c\ \text{learned}",),
    "mhrope": (
        r"q'_{h,c} = q_{h,c}\,e^{i m_{a(h)}\theta_c},\quad \theta_c = \beta^{-2c/D},\quad"
        r" a(h) \in \{\text{time, row, column}\}",
    ),
    "rope_pp": (
        r"z_{mn} = \sum_c q'_c\,\bar k'_c,\quad \ell^{(2h-1)}_{mn} = \frac{\mathrm{Re}\,z_{mn}}{\sqrt D},\quad"
        r" \ell^{(2h)}_{mn} = \frac{\mathrm{Im}\,z_{mn}}{\sqrt D}",
    ),
    "cayley_string": (
        r"q'_m = R_m P q_m,\quad k'_n = R_n P k_n,\quad P = (I-S)(I+S)^{-1},\quad S = -S^\top\ \text{learned}",
    ),
    "circulant_string": (
        r"q'_m = \exp\left(\sum_a m_a\left(C_a - C_a^\top\right)\right) q_m,\quad C_a\ \text{circulant, learned}",
    ),
    "comrope": (
        r"q'_m = \exp\left(\sum_a m_a A_a\right) q_m,\quad A_a = \vartheta_a B,\quad B = -B^\top\ \text{learned}",
        r"\text{or each block of channels turns with one axis alone}",
    ),
    "harope": (r"q'_m = R_m A q_m,\quad k'_n = R_n A k_n,\quad A = U\,\mathrm{diag}(s)\,V^\top\ \text{learned}",),
    "spherical_rope": (
        r"q'_d = R_3\left(m_y\omega_d\right) R_1\left(m_x\omega_d\right) q_d,\quad \omega_d = \beta^{-d/K}",
        r"q_d\ \text{the triplet } d \text{ of } K \text{ of channels},\quad R_a\ \text{a turn about channel } a",
    ),
}
_SCALINGS = {
    "linear": (r"\theta'_c = \frac{\theta_c}{s}",),
    "ntk": (r"\theta'_c = \theta_c\,s^{-c/(C-1)},\quad c = 0, \dots, C-1",),
    "ntk_by_parts": (
        r"\theta'_c = g_c\,\theta_c + (1-g_c)\,\frac{\theta_c}{s}",
        r"g_c = \mathrm{clip}\left("
        r"\frac{r_c - \beta_{\mathrm{slow}}}{\beta_{\mathrm{fast}} - \beta_{\mathrm{slow}}}, 0, 1\right),"
        r"\quad r_c = \frac{N\theta_c}{2\pi}",
    ),
    "yarn": (
        r"\theta'_c = (1-g_c)\,\theta_c + g_c\,\frac{\theta_c}{s},\quad \ell' = \mu^2\,\ell,\quad \mu = 0.1\ln s + 1",
        r"g_c = \mathrm{clip}\left(\frac{c - c_{\mathrm{low}}}{c_{\mathrm{high}} - c_{\mathrm{low}}}, 0, 1\right),\quad"
        r" c(\nu) = \frac{C}{\ln\beta}\ln\frac{N}{2\pi\nu}",
    ),
    "llama3": (
        r"\theta'_c = \begin{cases} \theta_c & \lambda_c < N/\nu_{\mathrm{high}} \\"
        r" \theta_c/s & \lambda_c > N/\nu_{\mathrm{low}} \\"
        r" (1-g_c)\,\theta_c/s + g_c\,\theta_c & \text{else} \end{cases}",
        r"\lambda_c = \frac{2\pi}{\theta_c},\quad"
        r" g_c = \frac{N/\lambda_c - \nu_{\mathrm{low}}}{\nu_{\mathrm{high}} - \nu_{\mathrm{low}}}",
    ),
    "longrope": (
        r"\theta'_c = \begin{cases} \theta_c/\lambda^{\mathrm{short}}_c & T \le N \\"
        r" \theta_c/\lambda^{\mathrm{long}}_c & T > N \end{cases},\quad"
        r" \mu = \sqrt{1 + \frac{\ln s}{\ln N}}",
        r"T\ \text{the length of the document};\ \mu\ \text{multiplies queries and keys}",
    ),
    "dynamic_ntk": (
        r"\theta'_c = \theta_c\,s_T^{-c/(C-1)},\quad s_T = \max\left(1,\ \frac{sT}{N} - (s-1)\right)",
        r"T\ \text{the length of the document}",
    ),
    "dynamic_yarn": (
        r"\text{YaRN with}\quad s_T = \max\left(1, \frac{T}{N}\right),\quad \mu = 0.1\ln s_T + 1",
        r"T\ \text{the length of the document}",
    ),
    "clipped": (
        r"\theta'_c = w_c\,\theta_c,\quad w_c = \begin{cases} 1 & c < C-k \\"
        r" \frac12\left(1 + \cos\frac{\pi\,(c-C+k)}{k-1}\right) & \text{else} \end{cases}",
    ),
    "resonance": (r"\theta'_c = \frac{2\pi}{\mathrm{round}\left(2\pi/\theta_c\right)}",),
    "riflex": (
        r"\theta'_c = \begin{cases} \rho\,2\pi/L & c = c^* \\ \theta_c & \text{else} \end{cases}",
        r"c^* = \mathrm{argmin}_c \left|\mathrm{round}\left(2\pi/\theta_c\right) - r\right|",
    ),
    "dype": (
        r"\theta'_c = \theta_c\left(g_c + (1-g_c)\left(h_c\,s^{-c/(C-1)} + \frac{1-h_c}{s}\right)\right)",
        r"g_c, h_c\ \text{fall from 1 to 0 over the channels, later as } t \text{ falls}",
    ),
}
_MASKS = {
    "window": (rf"{_SHOWN} \max_a |m_a - n_a| < w",),
    "chunked": (rf"{_SHOWN} \lfloor m/w \rfloor = \lfloor n/w \rfloor",),
    "dilated": (rf"{_SHOWN} |m-n| < w\,\delta\quad\text{{and}}\quad m-n \equiv 0 \pmod{{\delta}}",),
    "longformer": (rf"{_SHOWN} |m-n| \le \frac w2\quad\text{{or}}\quad m < g\quad\text{{or}}\quad n < g",),
    "bigbird": (
        rf"{_SHOWN} |\beta_m - \beta_n| \le 1\quad\text{{or}}\quad \min(\beta_m, \beta_n) < g\quad\text{{or}}\quad"
        r" \beta_n \in \mathrm{random}(\beta_m)",
        r"\beta_p = \lfloor p/B \rfloor\ \text{the block of } p",
    ),
    "sinks": (rf"{_SHOWN} |m-n| < w\quad\text{{or}}\quad n < n_{{\mathrm{{sinks}}}}",),
    "learned_sink": (r"a_{mn} = \frac{e^{\ell_{mn}}}{e^{s_h} + \sum_l e^{\ell_{ml}}}",),
    "streaming": (
        r"m' = \begin{cases} m & m-n < w \\"
        r" \min\left(m,\ n_{\mathrm{sinks}} + w - 1\right) & n < n_{\mathrm{sinks}} \end{cases},"
        r"\quad n' = n,\quad a_{mn} = 0\ \text{else}",
    ),
    "rerope": (r"m - n \mapsto \begin{cases} m-n & m-n < w \\ w + \lambda\,(m-n-w) & \text{else} \end{cases}",),
    "self_extend": (
        r"m - n \mapsto \begin{cases} m-n & m-n < w \\"
        r" \lfloor m/g \rfloor + w - \lfloor w/g \rfloor - \lfloor n/g \rfloor & \text{else} \end{cases}",
    ),
    "dual_chunk": (
        r"n' = n \bmod s,\quad m' = \begin{cases} m \bmod s & n \text{ in the chunk of } m \\"
        r" \min\left(m \bmod s + s,\ s + w - 1\right) & n \text{ in the chunk before} \\"
        r" s + w - 1 & \text{else} \end{cases}",
    ),
}
_MAPS = {
    "interpolate": (r"p \mapsto \frac ps",),
    "fit_grid": (
        r"(y, x) \mapsto \left(\frac{y\,H_0}{H_1},\ \frac{x\,W_0}{W_1}\right)",
        r"H_0 \times W_0\ \text{the trained grid},\ H_1 \times W_1\ \text{that of the image}",
    ),
    "raster": (r"(y, x) \mapsto y\,W + x",),
    "axis": (r"(p_0, p_1, \dots) \mapsto p_a",),
    "reset": (r"p \mapsto p - \min_{p'\ \text{in the document}} p'",),
    "unpad": (r"p \mapsto p - \min_{p'\ \text{in the row}} p'",),
    "cape": (
        r"p_i \mapsto \left(p_i + \Delta + \epsilon_i\right)\lambda",
        r"\Delta \sim U(-\Delta_{\max}, \Delta_{\max}),\quad \epsilon_i \sim U(-\epsilon_{\max}, \epsilon_{\max}),\quad"
        r" \ln\lambda \sim U(-\ln\lambda_{\max}, \ln\lambda_{\max})",
    ),
    "shape": (r"p \mapsto p + k,\quad k \sim U\{0, \dots, k_{\max}\}\ \text{for a row}",),
    "pose": (
        r"p \mapsto \begin{cases} p & p < c \\ p + u & p \ge c \end{cases}",
        r"c \sim U\{1, \dots, \lceil T/2 \rceil\},\quad u \sim U\{0, \dots, L - T\},\quad T\ \text{tokens in the document}",
    ),
    "randomized": (r"p_1 < \dots < p_T\quad\text{drawn from}\quad \{0, \dots, L-1\}\ \text{without replacement}",),
    "random_float": (r"p_1 \le \dots \le p_T\quad\text{drawn from}\quad U[0, L)",),
    "position_coupling": (
        r"p \mapsto p + k\ \text{for}\ p > 0,\quad k \sim U\{0, \dots, P - \max p\}\ \text{in training}",
    ),
}
_REST = {
    "none": (r"\ell_{mn} = \frac{q_m \cdot k_n}{\sqrt D}",),
    "llama4_temperature": (
        r"q'_m = q_m \left(1 + \alpha \ln\left(1 + \left\lfloor \frac{m+1}{f} \right\rfloor\right)\right)",
    ),
    "log_n": (r"q'_m = q_m \max\left(1, \frac{\ln(m+1)}{\ln N}\right)",),
    "ssmax": (r"q'_m = s_h \ln(m+1)\,q_m",),
}
FORMULAS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    _ADDED | _BIASES | _CONTENT | _ROTATIONS | _SCALINGS | _MASKS | _MAPS | _REST
)


def apart(latex: str) -> list[str]:
    """The formulas of a line, which a comma and a wide space divide: a narrow page breaks the line there."""
    found, depth = [""], 0
    for piece in re.split(r"(,\\quad|\\left(?!arrow)|\\right|\\begin|\\end|[{}])", latex):
        if piece == r",\quad" and not depth:
            found[-1] += ","
            found.append("")
            continue
        depth += _DEEPER.get(piece, 0)
        found[-1] += piece
    return [part.strip() for part in found]


_DEEPER = {"{": 1, "}": -1, r"\left": 1, r"\right": -1, r"\begin": 1, r"\end": -1}


def mathml(latex: str, block: bool = True) -> str:
    """A formula as the browser draws it, with its LaTeX as text for those who do not see it."""
    made = latex2mathml.converter.convert(latex, display="block" if block else "inline")
    escaped = latex.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return made.replace("<math ", f'<math alttext="{escaped}" ', 1)
