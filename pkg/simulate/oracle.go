package simulate

func oracles() []Strategy { return nil }
