"""Made-up secrets of every known kind, with the text before and after each."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass

_LETTERS = "Ab3dEf6hIj9lMn2pQr5tUv8xYz1BcD4eFgH7iJkL0mNoPqRsTuVwXyZa"
_LINE = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"
# A certificate and a public key begin otherwise.
_OPEN = "\n".join(f"MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA{number}JWa9CkQx7rE" for number in range(10, 18))
_BODY = "\n".join([*(f"{number}{_LINE[1:]}" for number in range(1, 9)), "Zm9vYmFyYmF6"])
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{_BODY}\n-----END RSA PRIVATE KEY-----"
PASSWORD = "p@ss;W0rd&x,y"


@dataclass(frozen=True)
class Planted:
    """A text with a secret; `kind` is what shall stand in its place, `pieces` what must not be left of it."""

    before: str
    secret: str
    after: str
    kind: str

    @property
    def text(self) -> bytes:
        return (self.before + self.secret + self.after).encode()

    @property
    def hidden(self) -> bytes:
        return f"{self.before}[redacted {self.kind}]{self.after}".encode()


def _token(prefix: str, length: int = 40) -> str:
    return prefix + _LETTERS[:length]


TOKENS = {
    "oauth": (_token("ya29.a0_"), "oauth-token"),
    "oauth of a machine": (_token("ya29.c.b0-"), "oauth-token"),
    "refresh": (_token("1//0g"), "refresh-token"),
    "code": (_token("4/0A"), "oauth-code"),
    "client secret": (_token("GOCSPX-", 28), "client-secret"),
    "api key": (_token("AIza", 35), "api-key"),
    "github": (_token("ghp_", 36), "github-token"),
    "github app": (_token("ghs_", 36), "github-token"),
    "github fine": (_token("github_pat_11A_"), "github-token"),
    "gitlab": (_token("glpat-", 20), "gitlab-token"),
    "hugging face": (_token("hf_", 34), "hugging-face-token"),
    "aws": ("AKIA" + "IOSFODNN7EXAMPLE", "aws-access-key"),
    "slack": (_token("xoxb-123456789012-", 24), "slack-token"),
    "openai": (_token("sk-", 48), "openai-key"),
    "openai project": (_token("sk-proj-", 48), "openai-key"),
    "anthropic": (_token("sk-ant-api03-", 48), "anthropic-key"),
    "jwt": ("eyJ" + "hbGciOiJSUzI1NiJ9.eyJ" + "pc3MiOiJ4In0." + _LETTERS, "jwt"),
    "pem": (PEM, "private-key"),
    "base64 of pem": (base64.b64encode(PEM.encode()).decode(), "private-key"),
}
AROUND = (("", ""), ("token is ", " of us\n"), ('{"a": "', '", "b": 1}'), ("x=", "\n"), ("(", ")"))

NAMED = {
    "environment": Planted("MY_SECRET=", PASSWORD, "\n", "secret"),
    "environment, token": Planted("export HF_TOKEN=", "short1", "\nnext", "token"),
    "environment, name after": Planted("DB_PASSWORD_2=", PASSWORD, "\n", "password"),
    "environment, words": Planted("API_KEY=", "two words", "\n", "api-key"),
    "credential": Planted("MY_CREDENTIALS=", "abc:def", "\n", "credential"),
    "wandb": Planted("WANDB_API_KEY=", "0123456789abcdef0123456789abcdef01234567", "\n", "api-key"),
    "aws secret": Planted("aws_secret_access_key = ", "wJalrXUtnFEMI/K7MDENG/bPxRfiCY", "\n", "access-key"),
    "json": Planted('{"password": "', 'a\\"b\\\\c d', '", "x": 1}', "password"),
    "json, key id": Planted('{"private_key_id": "', "abcdef0123456789", '"}', "private-key"),
    "json, key": Planted('{"private_key": "', json.dumps(PEM)[1:-1] + "\\n", '", "x": 1}', "private-key"),
    "json in json": Planted('{"log": "{\\"client_secret\\": \\"', "abc def", '\\", \\"y\\": 2}"}', "secret"),
    "json in json, key": Planted(
        '{"log": "{\\"private_key\\": \\"', json.dumps(json.dumps(PEM))[3:-3], '\\"}"}', "private-key"
    ),
    "python": Planted("os.environ['WANDB_API_KEY'] = '", "abc", "'\n", "api-key"),
    "python, dict": Planted("{'token': '", "abc", "', 'n': 3}", "token"),
    "yaml": Planted("  password: ", "two words", "\n  user: ada\n", "password"),
    "flag": Planted("python train.py --password ", "hunter2", " --lr 1", "password"),
    "flag, as prose begins": Planted("train --password ", "is4me", " --lr 1", "password"),
    "flag with =": Planted("python train.py --token=", "zz9", " --lr 1", "token"),
    "flag in a list": Planted("['train', '--api-key', '", "zz 9", "', '--lr']", "api-key"),
    "flag, dashes": Planted("x --hf-token ", "abcdef", "\n", "token"),
    "flag, quoted as a word": Planted("python train.py '--password=", "two words", "' --lr 1", "password"),
    "environment, quoted as a word": Planted('env "API_KEY=', "two words", '" train', "api-key"),
    "json in json, quoted as a word": Planted('{"a": "run \\"PASSWORD=', "two words", '\\" x"}', "password"),
    "name with a joint": Planted("x auth_token: ", "words", " y", "token"),
    "header": Planted("Authorization: Bearer ", "abc.def", "\n", "authorization"),
    "header, proxy": Planted("> Proxy-Authorization: Basic ", "dXNlcjpwYXNz", "\r\n", "authorization"),
    "header, dict": Planted("{'Authorization': 'Bearer ", "abc", "', 'Accept': '*/*'}", "authorization"),
    "header, curl": Planted('curl -H "X-Api-Key: ', "abc123", '" http://x/', "api-key"),
    "cookie": Planted("Set-Cookie: ", "a=b; Path=/; c=d", "\n", "cookie"),
    "bearer": Planted("sent bearer ", _token("abc"), " to it", "bearer-token"),
    "url": Planted("git clone https://ada:", "s3cr3t@x", "@github.com/a/b", "password"),
    "url without user": Planted("redis://:", "s3cr3t", "@10.0.0.2:6379/0", "password"),
    "signed url": Planted("https://s/o?X-Goog-Date=1&X-Goog-Signature=", "ab01" * 16, "&x=1", "signature"),
    "curl": Planted("curl -u ada:", "s3cr3t", " http://x/", "password"),
    "netrc": Planted("machine api.wandb.ai\n  login user\n  password ", "0123456789abcdef" * 2, "\n", "password"),
    "wandb login": Planted("wandb login --relogin ", "0123456789abcdef0123" * 2, "\n", "wandb-key"),
    "docker": Planted('{"auths": {"gcr.io": {"auth": "', "dXNlcjpwYXNzd29yZA==", '"}}}', "password"),
}

HARMLESS = (
    "I1121 10:00:00.123456    77 tpu_driver.cc:55] step 1000 loss=2.345 tokens/s=12345 hbm used 12.3G of 16G",
    "tokens=1024 num_tokens: 4096 max_tokens=77 tokens_per_second: 1234.5tok/s TOKENS=5",
    "TOKENIZERS_PARALLELISM=false tokenizer=gpt2 pad_token_id=0 eos_token: </s> pad_token='[PAD]' next token: foo1bar2",
    "token = os.environ['HF_TOKEN']; model.tokenizer(token)",
    "--tokenizer gpt2 --max-tokens 77 --token-length 5 use --password to set it",
    "GOOGLE_APPLICATION_CREDENTIALS=/home/ada/key.json HF_TOKEN=None PASSWORD= SECRET=${MY_SECRET}",
    "https://storage.googleapis.com:443/b/o?alt=json&a=b@c gs://bucket1//checkpoint-directory-with-a-long-name",
    "sk-learn-contrib-package-x task-12345678901234567890 disk-a perf_hf_x eyJ hf_model_name",
    "commit 0123456789abcdef0123456789abcdef01234567 sha256:" + "ab" * 32,
    "docker run -u 1000:1000 --user 1000 image; ls -l /dev/accel0; ada@example.com from 10.0.0.1",
    '{"token": {"x": null}, "password": [], "secret": {}, "api_key": ""}',
    "-----BEGIN CERTIFICATE-----\n" + _OPEN + "\n-----END CERTIFICATE-----",
    "-----BEGIN PUBLIC KEY-----\n" + _OPEN + "\n-----END PUBLIC KEY-----",
    base64.b64encode(b"-----BEGIN CERTIFICATE-----\n" + _OPEN.encode()).decode(),
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKtqh3Lh0bTC2mUaQZ7m3xT5c2mVb5KQyQ0mAbcdefgh ada@host",
    "audio_token='<|audio|>' mask-token: [MASK] the token: invalid",
    "secret_name: my-secret password_file=/run/secrets/x token_count=12 credentials: /etc/keys/sa.json",
    '\x00\x01\xff binary \x80 rubbish \\n \\" % 100%',
)
