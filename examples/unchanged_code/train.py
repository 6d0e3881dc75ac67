"""A training script that does not mention fxpool: `torch.compile` with its default backend."""

import torch


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.SiLU(), torch.nn.Linear(64, 1))
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.randn(128, 16)
    target = data.square().mean(1, keepdim=True)
    loss = torch.tensor(0.0)
    for _ in range(10):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(compiled(data), target)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
