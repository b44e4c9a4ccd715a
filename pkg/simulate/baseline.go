package simulate

func baselines() []Strategy { return nil }
